"""D10: a Produce or an EndTxn that a slow network delivers when its time is over changes nothing.

The producer speaks as KIP-890 wants it (`transaction.version` 2): each end of a transaction brings a new epoch. Its
coordinator and the leader of what it writes are two brokers, so that one has to ask the other.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.sync.transport import Connection, encode_request
from headrace.model.errors import ErrorCode
from headrace.records.builder import NewRecord, build_batch
from headrace.testing import LocalCluster
from tests.integration.holding_proxy import HoldingProxy
from tests.integration.transactional import PATIENCE_S, Message, Owner, ask, is_complete, message, owner_in
from tests.patience import until
from tests.torture.transaction_v2 import error_codes

SEAL = "the end"
FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Its brokers have long sessions: who leads and who coordinates stays so, also when the machine stands still."""
    settings = {"transaction.state.log.num.partitions": "3", "broker.session.timeout.ms": "60000"}
    with LocalCluster(3, settings=settings) as running:
        yield running


class Teller:
    """A transactional producer, request by request: each can be sent whenever and by whatever way."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.topic = self._id = f"late-{next(_numbers)}"
        found = ask(cluster.brokers[1].port, message("find_coordinator.v6", key_type=1, coordinator_keys=(self._id,)))
        coordinator = found.coordinators[0].node_id
        leader, other = (one for one in cluster.brokers if one != coordinator)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = NewTopic(self.topic, 1, replica_assignment=[[leader, other, coordinator]])
        admin.create_topics([wanted])[self.topic].result(PATIENCE_S)
        self.coordinator, self.leader = cluster.brokers[coordinator].port, cluster.brokers[leader].port

    # What it can say

    def produce(self, owner: Owner, value: str, sequence: int = 0) -> Message:
        records = build_batch(
            [NewRecord(0, None, value.encode())], **owner._asdict(), base_sequence=sequence, transactional=True
        )
        topics = [{"name": self.topic, "partition_data": [{"index": 0, "records": records}]}]
        return message("produce.v12", transactional_id=self._id, acks=-1, timeout=10_000, topic_data=topics)

    def end(self, owner: Owner, *, commit: bool) -> Message:
        return message("end_txn.v5", transactional_id=self._id, **owner._asdict(), committed=commit)

    # Said, and answered with yes

    def begins(self) -> Owner:
        """Also in the place of one that was there before, whose transaction is aborted."""
        named = {"transactional_id": self._id, "transaction_timeout": 60_000}
        return owner_in(ask(self.coordinator, message("init_producer_id.v5", **named, **Owner()._asdict())))

    def has_produced(self, owner: Owner, value: str, sequence: int = 0) -> None:
        assert error_codes(ask(self.leader, self.produce(owner, value, sequence))) == []

    def has_ended(self, owner: Owner, *, commit: bool) -> Owner:
        """Also where it was written: until the marker is there, whatever comes is a part of what it ends."""
        following = owner_in(ask(self.coordinator, self.end(owner, commit=commit)))
        until(lambda: is_complete(self.coordinator, self._id), "the markers are written", PATIENCE_S)
        return following

    # What is there in the end

    def log(self, isolation: str) -> list[str]:
        """Everything up to a last record that is written now: what is not before it never comes."""
        sealing = Producer({"bootstrap.servers": self._cluster.bootstrap, "enable.idempotence": True})
        sealing.produce(self.topic, SEAL)
        assert sealing.flush(PATIENCE_S) == 0
        settings = {"bootstrap.servers": self._cluster.bootstrap, "group.id": "reader", "isolation.level": isolation}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: list[str] = []

        def read_on() -> bool:
            polled = consumer.poll(1.0)
            if polled is not None and polled.error() is None:
                found.append((polled.value() or b"").decode())
            return SEAL in found

        until(read_on, "the last record is read", PATIENCE_S)
        consumer.close()
        return found[:-1]


@contextmanager
def held(proxy: HoldingProxy, said: Message) -> Iterator["Future[Any]"]:
    """The request is on its way as long as the block lasts; what it is answered then is the result."""
    with (
        ThreadPoolExecutor(1) as pool,
        Connection("127.0.0.1", proxy.port, PATIENCE_S) as connection,
    ):
        proxy.hold()
        answered = pool.submit(connection.call, *said)
        size = len(encode_request(said.request, 1))
        until(lambda: proxy.held_bytes >= size, "the request is on its way", PATIENCE_S)
        try:
            yield answered
        finally:
            proxy.let_go()
        answered.result(PATIENCE_S)


@pytest.mark.parametrize("had_written", [True, False])
@pytest.mark.parametrize("next_has_begun", [True, False])
def test_d10_a_produce_that_comes_after_its_transaction_was_aborted_is_not_written(
    cluster: LocalCluster, had_written: bool, next_has_begun: bool
) -> None:
    """Its partition may never have heard of that producer: then only the coordinator can tell."""
    teller = Teller(cluster)
    with HoldingProxy(teller.leader) as slow:
        owner = teller.begins()
        if had_written:
            teller.has_produced(owner, "in time")
        with held(slow, teller.produce(owner, "late", sequence=int(had_written))) as late:
            following = teller.has_ended(owner, commit=False)
            if next_has_begun:
                teller.has_produced(following, "next")
        assert set(error_codes(late.result())) <= FENCED
        assert error_codes(late.result()), "it was not taken"
    if not next_has_begun:
        teller.has_produced(following, "next")
    teller.has_ended(following, commit=True)
    assert teller.log("read_committed") == ["next"]
    assert "late" not in teller.log("read_uncommitted")


@pytest.mark.parametrize("commit", [True, False])
def test_d10_an_end_that_comes_late_does_not_end_the_next_transaction(cluster: LocalCluster, commit: bool) -> None:
    teller = Teller(cluster)
    with HoldingProxy(teller.coordinator) as slow:
        owner = teller.begins()
        teller.has_produced(owner, "first")
        with held(slow, teller.end(owner, commit=commit)) as late:
            following = teller.has_ended(owner, commit=commit)  # no answer came: it has tried again, by another way
            teller.has_produced(following, "second")
        assert error_codes(late.result())
        assert set(error_codes(late.result())) <= FENCED
        teller.has_produced(following, "third", sequence=1)
        teller.has_ended(following, commit=not commit)
    assert teller.log("read_committed") == (["first"] if commit else ["second", "third"])


def test_d10_what_a_producer_said_before_it_was_replaced_is_void(cluster: LocalCluster) -> None:
    teller = Teller(cluster)
    with HoldingProxy(teller.leader) as slow_leader, HoldingProxy(teller.coordinator) as slow_coordinator:
        owner = teller.begins()
        teller.has_produced(owner, "first")
        with (
            held(slow_leader, teller.produce(owner, "late", sequence=1)) as late_record,
            held(slow_coordinator, teller.end(owner, commit=True)) as late_commit,
        ):
            successor = teller.begins()
        for late in (late_record, late_commit):
            assert error_codes(late.result())
            assert set(error_codes(late.result())) <= FENCED
    teller.has_produced(successor, "second")
    teller.has_ended(successor, commit=True)
    assert teller.log("read_committed") == ["second"]
    assert "late" not in teller.log("read_uncommitted")
