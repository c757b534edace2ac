"""Records of consumer groups, against bytes that Apache Kafka 4.3's own classes wrote."""

from uuid import UUID

import pytest

from headrace.core.coordinator import CoordinatorRecord
from headrace.core.group.consumer.model import (
    ClassicMemberMetadata,
    CurrentAssignment,
    GroupEpoch,
    HoldingOf,
    MemberState,
    MemberSubscribed,
    ModernFact,
    RegexResolved,
    ResolvedTopics,
    Subscription,
    TargetEpoch,
    TargetOf,
)
from headrace.core.group.consumer.records import decode, encode

TOPIC = UUID(int=1 << 64 | 2)

WRITTEN_BY_KAFKA: list[tuple[ModernFact, str, str]] = [
    (GroupEpoch("g", 7, -5), "0003000167", "000000000007010008fffffffffffffffb"),
    (GroupEpoch("g", 7), "0003000167", "00000000000700"),
    (
        MemberSubscribed("g", "m", Subscription(("a", "b"), "x.*", "i", None, "c", "/h", 300, "range")),
        "000500016700016d",
        "00000269000263032f68030261026204782e2a0000012c0672616e676500",
    ),
    (
        MemberSubscribed(
            "g",
            "m",
            Subscription(
                ("a",), None, None, "r", "c", "/h", 300, None, ClassicMemberMetadata(9, (("range", b"\1\2"),))
            ),
        ),
        "000500016700016d",
        "00000002720263032f68020261000000012c000100110100000009020672616e67650301020000",
    ),
    (TargetEpoch("g", 7), "0006000167", "00000000000700"),
    (TargetEpoch("g", 7, 1_700_000_000_000), "0006000167", "0000000000070100080000018bcfe56800"),
    (
        TargetOf("g", "m", {TOPIC: frozenset({0, 3})}),
        "000700016700016d",
        "000002000000000000000100000000000000020300000000000000030000",
    ),
    (
        HoldingOf(
            "g",
            "m",
            CurrentAssignment(7, 6, MemberState.UNREVOKED, {TOPIC: frozenset({0, 3})}, {TOPIC: frozenset({1})}),
        ),
        "000800016700016d",
        "0000000000070000000601020000000000000001000000000000000203000000000000000300"
        "020000000000000001000000000000000202000000010000",
    ),
    (
        RegexResolved("g", "x.*", ResolvedTopics(frozenset({"xa", "xb"}), 9)),
        "00100001670003782e2a",
        "0000030378610378620000000000000009000000000000000000",
    ),
]


@pytest.mark.parametrize(("fact", "key", "value"), WRITTEN_BY_KAFKA, ids=lambda one: type(one).__name__)
def test_a_fact_is_written_and_read_as_kafka_does_it(fact: ModernFact, key: str, value: str) -> None:
    record = CoordinatorRecord(bytes.fromhex(key), bytes.fromhex(value))
    assert encode(fact) == record
    assert decode(record) == fact


def test_a_fact_without_content_is_a_tombstone() -> None:
    for fact in (GroupEpoch("g", None), MemberSubscribed("g", "m", None), RegexResolved("g", "x", None)):
        record = encode(fact)
        assert record is not None
        assert record.value is None
        assert decode(record) == fact


def test_topics_of_a_group_as_kafka_4_0_kept_them_are_passed_over() -> None:
    assert decode(CoordinatorRecord(bytes.fromhex("0004000167"), bytes.fromhex("00000100"))) is None
