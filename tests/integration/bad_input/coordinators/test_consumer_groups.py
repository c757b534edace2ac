"""The newer group protocol: epochs that are over, expressions that explode, lists without end."""

from typing import Any

import pytest

from headrace.protocol.api import ApiKey
from headrace.testing import LocalBroker
from tests.integration.bad_input.coordinators.kit import (
    FENCED_MEMBER_EPOCH,
    GROUP_ID_NOT_FOUND,
    INVALID_REGEX,
    INVALID_REQUEST,
    MESSAGE_TOO_LARGE,
    MIB,
    NONE,
    STALE_MEMBER_EPOCH,
    UNKNOWN_MEMBER,
    UNSUPPORTED_ASSIGNOR,
    Stranger,
    fresh,
)
from tests.integration.bad_input.kit import resident_bytes

SET, GROUP_RESOURCE = 0, 32  # as IncrementalAlterConfigs counts operations, and what configs belong to


def beat(stranger: Stranger, group_id: str, member_id: str, epoch: int, **fields: Any) -> Any:
    if epoch == 0:
        fields = {"rebalance_timeout": 5000, "subscribed_topic_names": (), "topic_partitions": (), **fields}
    return stranger.ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, group_id=group_id, member_id=member_id, member_epoch=epoch, **fields
    )


def code(answer: Any) -> int:
    return int(answer.error_code.value)


class Joined:
    """A member that reads one topic."""

    def __init__(self, stranger: Stranger) -> None:
        self.topic, self.group_id, self.member_id = stranger.create_topic(), fresh("g"), fresh("m")
        answer = beat(stranger, self.group_id, self.member_id, 0, subscribed_topic_names=(self.topic,))
        assert code(answer) == NONE, answer
        self.epoch: int = answer.member_epoch


def test_an_epoch_that_is_not_the_members_is_fenced_and_changes_nothing(stranger: Stranger) -> None:
    member = Joined(stranger)
    for epoch in (member.epoch + 1, member.epoch + 1000, 2**31 - 1):
        assert code(beat(stranger, member.group_id, member.member_id, epoch)) == FENCED_MEMBER_EPOCH
        named = {"member_id": member.member_id, "generation": epoch}
        assert stranger.commit_code(member.group_id, member.topic, **named) == STALE_MEMBER_EPOCH
    assert stranger.committed(member.group_id, member.topic) == -1
    assert code(beat(stranger, member.group_id, member.member_id, member.epoch)) == NONE


def test_an_epoch_that_is_over_is_fenced(stranger: Stranger) -> None:
    """One epoch back may be an answer that was lost; two are not."""
    member = Joined(stranger)
    epoch = member.epoch
    for _ in range(2):
        topics = (member.topic, stranger.create_topic())
        epoch = beat(stranger, member.group_id, member.member_id, epoch, subscribed_topic_names=topics).member_epoch
    assert epoch == member.epoch + 2
    late = beat(stranger, member.group_id, member.member_id, member.epoch)
    assert code(late) == FENCED_MEMBER_EPOCH
    named = {"member_id": member.member_id, "generation": member.epoch}
    assert stranger.commit_code(member.group_id, member.topic, **named) == STALE_MEMBER_EPOCH


@pytest.mark.parametrize("epoch", [-3, -(2**31)])
def test_an_epoch_that_means_nothing_is_refused(stranger: Stranger, epoch: int) -> None:
    member = Joined(stranger)
    assert code(beat(stranger, member.group_id, member.member_id, epoch)) == INVALID_REQUEST


def test_a_member_that_nobody_knows_is_refused(stranger: Stranger) -> None:
    member = Joined(stranger)
    assert code(beat(stranger, member.group_id, fresh("nobody"), 1)) == UNKNOWN_MEMBER
    assert code(beat(stranger, member.group_id, fresh("nobody"), -1)) == UNKNOWN_MEMBER
    assert code(beat(stranger, fresh("no-group"), member.member_id, 1)) == GROUP_ID_NOT_FOUND
    named = {"member_id": fresh("nobody"), "generation": 1}
    assert stranger.commit_code(member.group_id, member.topic, **named) == UNKNOWN_MEMBER


def test_partitions_that_a_member_does_not_own_are_not_its_own_because_it_says_so(stranger: Stranger) -> None:
    owner, thief = Joined(stranger), fresh("m")
    topic_id = stranger.ask(ApiKey.METADATA, topics=[{"name": owner.topic}]).topics[0].topic_id
    claim = [{"topic_id": topic_id, "partitions": (0,)}]
    wish = {"subscribed_topic_names": (owner.topic,), "topic_partitions": claim}
    assert code(beat(stranger, owner.group_id, thief, 0, **wish)) == INVALID_REQUEST, "who joins owns nothing"
    answer = beat(stranger, owner.group_id, thief, 0, subscribed_topic_names=(owner.topic,))
    assert code(answer) == NONE
    greedy = beat(stranger, owner.group_id, thief, answer.member_epoch, **wish)
    assert code(greedy) == NONE
    assert greedy.assignment is None or not greedy.assignment.topic_partitions
    still = beat(stranger, owner.group_id, owner.member_id, owner.epoch, topic_partitions=claim)
    assert code(still) == NONE


# Expressions

EXPLODING = [
    "(a+)+$",
    "(a|a)*$",
    "(.*a){25}",
    "(a|aa)+$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(x+x+)+y",
]


@pytest.mark.parametrize("regex", EXPLODING)
def test_an_expression_that_explodes_elsewhere_is_matched_in_no_time(stranger: Stranger, regex: str) -> None:
    topic = {"name": "a" * 249, "num_partitions": 1, "replication_factor": 1}
    stranger.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=5000)
    wish = {"subscribed_topic_names": None, "subscribed_topic_regex": regex}
    assert code(beat(stranger, fresh("g"), fresh("m"), 0, **wish)) == NONE


@pytest.mark.parametrize(
    "regex",
    ["(", "[a", "a{2,1}", "*", r"(?=a)", r"(a)\1", "((((a{100}){100}){100}){100}){100}", "x" * 4097, "x" * MIB],
    ids=[
        "open group",
        "open class",
        "range",
        "nothing to repeat",
        "look ahead",
        "back reference",
        "bomb",
        "long",
        "1MB",
    ],
)
def test_an_expression_that_is_none_is_refused_and_makes_no_group(
    broker: LocalBroker, stranger: Stranger, regex: str
) -> None:
    group_id, before = fresh("g"), resident_bytes(broker)
    wish = {"subscribed_topic_names": None, "subscribed_topic_regex": regex}
    assert code(beat(stranger, group_id, fresh("m"), 0, **wish)) == INVALID_REGEX
    assert group_id not in stranger.groups()
    assert resident_bytes(broker) - before < 32 * MIB


# Names, lists, times


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"group_id": "g" * MIB},
        {"member_id": ""},
        {"member_id": "m" * MIB},
        {"instance_id": ""},
        {"instance_id": "i" * MIB},
        {"rack_id": ""},
        {"rack_id": "r" * MIB},
        {"rebalance_timeout": -1},
        {"rebalance_timeout": -5},
        {"rebalance_timeout": -(2**31)},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
    ],
    ids=lambda fields: f"{next(iter(fields))} {str(next(iter(fields.values())))[:12]}",
)
def test_a_member_that_joins_without_sense_is_refused_and_makes_no_group(
    stranger: Stranger, fields: dict[str, Any]
) -> None:
    before = stranger.groups()
    given = {"group_id": fresh("g"), "member_id": fresh("m"), "epoch": 0, **fields}
    assert code(beat(stranger, **given)) == INVALID_REQUEST
    assert stranger.groups() <= before


def test_a_negative_rebalance_timeout_of_a_member_that_is_in_is_refused(stranger: Stranger) -> None:
    member = Joined(stranger)
    answer = beat(stranger, member.group_id, member.member_id, member.epoch, rebalance_timeout=-5)
    assert code(answer) == INVALID_REQUEST
    assert code(beat(stranger, member.group_id, member.member_id, member.epoch)) == NONE


def test_an_assignor_that_does_not_exist_is_refused(stranger: Stranger) -> None:
    group_id = fresh("g")
    assert code(beat(stranger, group_id, fresh("m"), 0, server_assignor="mine")) == UNSUPPORTED_ASSIGNOR
    assert group_id not in stranger.groups()


def test_a_subscription_that_no_record_could_hold_is_refused_and_leaves_no_trace(
    broker: LocalBroker, stranger: Stranger
) -> None:
    group_id, before = fresh("g"), resident_bytes(broker)
    names = tuple(f"{number:0200}" for number in range(8_000))
    for _ in range(3):
        answer = beat(stranger, group_id, fresh("m"), 0, subscribed_topic_names=names)
        assert code(answer) == MESSAGE_TOO_LARGE
    assert group_id not in stranger.groups()
    assert not stranger.is_in_a_log(group_id)
    assert resident_bytes(broker) - before < 32 * MIB


def test_a_thousand_members_that_never_come_back_are_forgotten(broker: LocalBroker, stranger: Stranger) -> None:
    group_id, before = fresh("g"), resident_bytes(broker)
    shorten_sessions(stranger, group_id)
    for _ in range(1_000):
        assert code(beat(stranger, group_id, fresh("m"), 0)) == NONE
    members = 1
    while members:  # until the last session is over
        (row,) = stranger.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=(group_id,)).groups
        members = len(row.members)
    assert resident_bytes(broker) - before < 64 * MIB


def shorten_sessions(stranger: Stranger, group_id: str) -> None:
    """Of this group alone: the others' members have to outlive whatever holds a busy machine up."""
    config = {"name": "consumer.session.timeout.ms", "config_operation": SET, "value": "1000"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group_id, "configs": [config]}
    answer = stranger.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    assert code(answer.responses[0]) == NONE, answer
