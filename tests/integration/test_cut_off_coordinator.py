"""A coordinator of transactions that is cut off and replaced: what it remembers is told to nobody."""

from collections.abc import Iterator

import pytest

from headrace.client.librdkafka import BrokerUnreachable
from headrace.client.sync.transport import Connection
from headrace.model.errors import ErrorCode
from headrace.testing import LocalCluster
from headrace.testing.local.cluster import METADATA
from tests.integration.transactional import PATIENCE_S, Message, Owner, ask, is_complete, message, owner_in
from tests.patience import awaited, until
from tests.torture.transaction_v2 import error_codes

SETTINGS = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, settings=SETTINGS, links=True) as running:
        yield running


def coordinator(cluster: LocalCluster, name: str, told_by: int) -> int:
    asked = message("find_coordinator.v6", key_type=1, coordinator_keys=(name,))
    found: int = ask(cluster.brokers[told_by].port, asked).coordinators[0].node_id
    return found


def agreed_coordinator(cluster: LocalCluster, name: str) -> int:
    """Once all brokers say the same: one of them may have been cut off in the test before."""

    def told() -> set[int]:
        try:
            return {coordinator(cluster, name, told_by=number) for number in cluster.brokers}
        except (OSError, BrokerUnreachable):
            return set()  # that one hangs up, so that its clients ask others

    (found,) = awaited(told, lambda ids: len(ids) == 1 and -1 not in ids, "all name one coordinator", PATIENCE_S)
    return found


def add_offsets(name: str, owner: Owner) -> Message:
    return message("add_offsets_to_txn.v3", group_id="copying", **named(name, owner))


def end(name: str, owner: Owner, *, commit: bool) -> Message:
    return message("end_txn.v4", committed=commit, **named(name, owner))


def named(name: str, owner: Owner) -> dict[str, object]:
    return {"transactional_id": name, **owner._asdict()}


def answer_of(port: int, asked: Message) -> set[ErrorCode] | None:
    """The codes that this very broker answers with; None if it hangs up instead."""
    try:
        with Connection("127.0.0.1", port, PATIENCE_S) as connection:
            return set(error_codes(connection.call(*asked)))
    except (OSError, BrokerUnreachable):
        return None


@pytest.mark.parametrize("commit", [True, False])
def test_d9_a_replaced_coordinator_tells_nothing_of_the_transaction_before(cluster: LocalCluster, commit: bool) -> None:
    """A client that keeps its epoch: by what is remembered, this commit is done already, and this abort a mistake."""
    name = f"cut-off-{commit}"
    before = agreed_coordinator(cluster, name)
    old = cluster.brokers[before].port
    init = message("init_producer_id.v4", transactional_id=name, transaction_timeout=60_000, **Owner()._asdict())
    owner = owner_in(ask(old, init))
    assert not error_codes(ask(old, add_offsets(name, owner)))
    assert not error_codes(ask(old, end(name, owner, commit=True)))
    until(lambda: is_complete(old, name), "the markers are written", PATIENCE_S)

    for other in (METADATA, *(one for one in cluster.brokers if one != before)):
        cluster.partition(before, other)
    try:
        third = before % 3 + 1
        until(lambda: coordinator(cluster, name, told_by=third) not in (before, -1), "another coordinator", PATIENCE_S)
        new = cluster.brokers[coordinator(cluster, name, told_by=third)].port
        assert not error_codes(ask(new, add_offsets(name, owner)))
        assert answer_of(old, end(name, owner, commit=commit)) in (None, {ErrorCode.NOT_COORDINATOR})
    finally:
        cluster.heal()
    assert not error_codes(ask(new, end(name, owner, commit=commit)))
