"""Transactional ids of strangers: nothing is ended, written or held back that its owner did not want."""

import pytest

from headrace.protocol.api import ApiKey
from headrace.testing import LocalBroker
from tests.integration.bad_input.coordinators.kit import (
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    MIB,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    Owner,
    Stranger,
    fresh,
)
from tests.integration.bad_input.kit import resident_bytes


def open_transaction(stranger: Stranger) -> tuple[Owner, str]:
    owner, topic = stranger.init(), stranger.create_topic()
    assert stranger.add_codes(owner, topic) == [NONE]
    assert stranger.produce_code(owner, topic) == NONE
    return owner, topic


def strangers(owner: Owner) -> dict[str, tuple[Owner, int]]:
    """Those who are not the owner, and what they are told."""
    return {
        "another producer id": (owner._replace(producer_id=owner.producer_id + 1_000_000), INVALID_PRODUCER_ID_MAPPING),
        "no producer id": (owner._replace(producer_id=-1), INVALID_PRODUCER_ID_MAPPING),
        "an older epoch": (owner._replace(producer_epoch=owner.producer_epoch - 1), PRODUCER_FENCED),
        "a newer epoch": (owner._replace(producer_epoch=owner.producer_epoch + 1), PRODUCER_FENCED),
        "an id that was never initialised": (owner._replace(transactional_id=fresh("x")), INVALID_PRODUCER_ID_MAPPING),
    }


def test_strangers_neither_end_a_transaction_nor_add_to_it(stranger: Stranger) -> None:
    owner, topic = open_transaction(stranger)
    other = stranger.create_topic()
    for who, (liar, code) in strangers(owner).items():
        for commit in (True, False):
            assert stranger.end_code(liar, commit=commit) == code, who
        assert stranger.add_codes(liar, other) == [code], who
        offsets = stranger.code(ApiKey.ADD_OFFSETS_TO_TXN, **liar._asdict(), group_id=fresh("g"))
        assert offsets == code, who
    assert stranger.stable_end(topic) == 0, "the transaction is still open"
    assert stranger.end_code(owner) == NONE
    assert stranger.end_code(owner) == NONE, "and its owner may ask twice"


def test_strangers_of_the_newer_protocol_neither_end_a_transaction_nor_add_to_it(stranger: Stranger) -> None:
    owner, topic = open_transaction(stranger)
    for who, (liar, code) in strangers(owner).items():
        assert stranger.end_code(liar, version=5) == code, who
    assert stranger.stable_end(topic) == 0
    assert stranger.end_code(owner, version=5) == NONE


def test_strangers_write_nothing(stranger: Stranger) -> None:
    owner, topic = stranger.init(), stranger.create_topic()
    assert stranger.produce_code(owner, topic) == TRANSACTION_ABORTABLE, "nobody added the partition"
    assert stranger.add_codes(owner, topic) == [NONE]
    assert stranger.produce_code(owner._replace(producer_id=owner.producer_id + 1_000_000), topic) != NONE
    assert stranger.produce_code(owner._replace(producer_epoch=owner.producer_epoch + 1), topic) != NONE
    assert stranger.produce_code(owner._replace(transactional_id=fresh("x")), topic) != NONE
    assert stranger.stable_end(topic) == 0
    assert stranger.end_code(owner) == NONE


def txn_commit(stranger: Stranger, owner: Owner, group_id: str, topic: str, **fields: object) -> int:
    row = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    answer = stranger.ask(
        ApiKey.TXN_OFFSET_COMMIT,
        4,
        **{
            **owner._asdict(),
            "group_id": group_id,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [row]}],
            **fields,
        },
    )
    return int(answer.topics[0].partitions[0].error_code.value)


def test_strangers_commit_no_offsets(stranger: Stranger) -> None:
    owner, topic, group_id = stranger.init(), stranger.create_topic(), fresh("g")
    assert txn_commit(stranger, owner, group_id, topic) == TRANSACTION_ABORTABLE, "nobody added the group"
    assert stranger.code(ApiKey.ADD_OFFSETS_TO_TXN, **owner._asdict(), group_id=group_id) == NONE
    for who, (liar, code) in strangers(owner).items():
        expected = INVALID_PRODUCER_EPOCH if code == PRODUCER_FENCED else code
        assert txn_commit(stranger, liar, group_id, topic) == expected, who
    assert txn_commit(stranger, owner, group_id, fresh("no-topic")) == UNKNOWN_TOPIC
    assert txn_commit(stranger, owner, "", topic) == INVALID_GROUP_ID
    assert stranger.end_code(owner) == NONE
    assert stranger.committed(group_id, topic) == -1


def test_a_producer_that_speaks_for_a_member_that_is_gone_commits_no_offsets(stranger: Stranger) -> None:
    owner, topic, member = stranger.init(), stranger.create_topic(), stranger.stable()
    assert stranger.code(ApiKey.ADD_OFFSETS_TO_TXN, **owner._asdict(), group_id=member.group_id) == NONE
    named = {"member_id": member.member_id, "generation_id": member.generation + 1}
    assert txn_commit(stranger, owner, member.group_id, topic, **named) == ILLEGAL_GENERATION
    named = {"member_id": fresh("nobody"), "generation_id": member.generation}
    assert txn_commit(stranger, owner, member.group_id, topic, **named) == UNKNOWN_MEMBER
    assert stranger.end_code(owner) == NONE
    assert stranger.committed(member.group_id, topic) == -1


def test_a_partition_that_does_not_exist_is_not_added_nor_its_neighbours(stranger: Stranger) -> None:
    owner, topic = stranger.init(), stranger.create_topic()
    codes = stranger.add_codes(owner, topic, fresh("no-topic"))
    assert sorted(codes) == [UNKNOWN_TOPIC, OPERATION_NOT_ATTEMPTED]
    assert stranger.end_code(owner) == INVALID_TXN_STATE, "so there is nothing to end"


def test_an_end_without_a_transaction_is_refused(stranger: Stranger) -> None:
    owner = stranger.init()
    assert stranger.end_code(owner) == INVALID_TXN_STATE
    assert stranger.end_code(owner, commit=False) == INVALID_TXN_STATE
    assert stranger.end_code(owner, version=5) == INVALID_TXN_STATE


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 900_001, 2**31 - 1])
def test_a_timeout_outside_of_the_limits_is_refused(stranger: Stranger, timeout_ms: int) -> None:
    name = fresh("x")
    fields = {"transactional_id": name, "transaction_timeout": timeout_ms}
    assert stranger.code(ApiKey.INIT_PRODUCER_ID, **fields) == INVALID_TRANSACTION_TIMEOUT
    assert not stranger.is_in_a_log(name)


@pytest.mark.parametrize("name", ["", "x" * 40_000, "x" * MIB], ids=["empty", "40,000", "a megabyte"])
def test_a_transactional_id_that_cannot_be_written_down_is_refused(
    broker: LocalBroker, stranger: Stranger, name: str
) -> None:
    before = resident_bytes(broker)
    for _ in range(3):
        fields = {"transactional_id": name, "transaction_timeout": 1000}
        assert stranger.code(ApiKey.INIT_PRODUCER_ID, **fields) == INVALID_REQUEST
    assert stranger.end_code(Owner(name, 1, 0)) == (INVALID_PRODUCER_ID_MAPPING if name else INVALID_REQUEST)
    assert resident_bytes(broker) - before < 32 * MIB


def test_somebody_elses_identity_takes_no_id_over(stranger: Stranger) -> None:
    owner, topic = open_transaction(stranger)
    for liar, code in (
        ({"producer_id": owner.producer_id + 1_000_000, "producer_epoch": 0}, PRODUCER_FENCED),
        ({"producer_id": owner.producer_id, "producer_epoch": owner.producer_epoch + 1}, PRODUCER_FENCED),
        ({"producer_id": owner.producer_id, "producer_epoch": -1}, INVALID_REQUEST),
    ):
        fields = {"transactional_id": owner.transactional_id, "transaction_timeout": 1000, **liar}
        assert stranger.code(ApiKey.INIT_PRODUCER_ID, **fields) == code
    assert stranger.stable_end(topic) == 0
    assert stranger.end_code(owner) == NONE


# Markers. Without an authoriser everybody is an administrator, and an administrator may end a transaction; but only one
# that exists, and only as its coordinator would.


def marker_code(stranger: Stranger, producer_id: int, epoch: int, topic: str, coordinator_epoch: int = 0) -> int:
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": topic, "partition_indexes": (0,)}],
    }
    answer = stranger.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
    return int(answer.markers[0].topics[0].partitions[0].error_code.value)


def test_markers_that_fit_no_transaction_end_none(stranger: Stranger) -> None:
    owner = stranger.init()
    owner = stranger.init(owner.transactional_id)  # an epoch that has a predecessor
    topic = stranger.create_topic()
    assert stranger.add_codes(owner, topic) == [NONE]
    assert stranger.produce_code(owner, topic) == NONE
    assert marker_code(stranger, owner.producer_id, owner.producer_epoch, fresh("no-topic")) == UNKNOWN_TOPIC
    assert marker_code(stranger, owner.producer_id, owner.producer_epoch - 1, topic) == INVALID_PRODUCER_EPOCH
    assert stranger.stable_end(topic) == 0, "the transaction is still open"
    assert stranger.end_code(owner) == NONE


def test_markers_of_nobody_are_refused(stranger: Stranger) -> None:
    topic = stranger.create_topic()
    for producer_id, epoch in ((-1, 0), (-(2**63), 0), (5, -1), (5, -(2**15))):
        assert marker_code(stranger, producer_id, epoch, topic) == INVALID_REQUEST, (producer_id, epoch)
    assert stranger.stable_end(topic) == 0
