"""Members that lie about who they are, and metadata that nobody can want."""

import time
from concurrent.futures import ThreadPoolExecutor
from struct import pack, unpack
from typing import Any

import pytest

from headrace.client.librdkafka import BrokerUnreachable
from headrace.client.sync.transport import encode_request
from headrace.protocol.api import ApiKey
from headrace.testing import LocalBroker
from tests.integration.bad_input.coordinators.kit import (
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_SESSION,
    MEMBER_ID_REQUIRED,
    MESSAGE_TOO_LARGE,
    MIB,
    NONE,
    REBALANCE_IN_PROGRESS,
    SESSION_MS,
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ID,
    Member,
    Stranger,
    fresh,
)
from tests.integration.bad_input.kit import resident_bytes
from tests.integration.raw import RawConnection, request, string

# Who one is


@pytest.mark.parametrize("generation", [0, 2, -1, 2**31 - 1])
def test_a_wrong_generation_is_refused_and_changes_nothing(stranger: Stranger, generation: int) -> None:
    topic, member = stranger.create_topic(), stranger.stable()
    liar = member._replace(generation=generation)
    assert stranger.heartbeat_code(liar) == ILLEGAL_GENERATION
    assert stranger.sync(liar, {}).error_code.value == ILLEGAL_GENERATION
    named = {"member_id": member.member_id, "generation": generation}
    assert stranger.commit_code(member.group_id, topic, **named) == ILLEGAL_GENERATION
    assert stranger.committed(member.group_id, topic) == -1
    assert stranger.heartbeat_code(member) == NONE


def test_an_unknown_member_is_refused_and_changes_nothing(stranger: Stranger) -> None:
    topic, member = stranger.create_topic(), stranger.stable()
    liar = member._replace(member_id=fresh("nobody"))
    assert stranger.heartbeat_code(liar) == UNKNOWN_MEMBER
    assert stranger.sync(liar, {}).error_code.value == UNKNOWN_MEMBER
    assert stranger.leave(liar) == UNKNOWN_MEMBER
    assert stranger.join(member.group_id, member_id=liar.member_id).error_code.value == UNKNOWN_MEMBER
    named = {"member_id": liar.member_id, "generation": member.generation}
    assert stranger.commit_code(member.group_id, topic, **named) == UNKNOWN_MEMBER
    assert stranger.commit_code(member.group_id, topic) == UNKNOWN_MEMBER, "nor one that names nobody"
    assert stranger.committed(member.group_id, topic) == -1
    assert stranger.heartbeat_code(member) == NONE


def test_members_of_a_group_that_does_not_exist_are_refused_and_make_none(stranger: Stranger) -> None:
    member = stranger.stable()._replace(group_id=fresh("no-group"))
    assert stranger.heartbeat_code(member) == UNKNOWN_MEMBER
    assert stranger.sync(member, {}).error_code.value == UNKNOWN_MEMBER
    assert stranger.join(member.group_id, member_id=member.member_id).error_code.value == UNKNOWN_MEMBER
    assert member.group_id not in stranger.groups()


# Sharing out


def test_only_the_leader_shares_out_and_only_among_members(broker: LocalBroker, stranger: Stranger) -> None:
    leader = stranger.joined()
    with Stranger(broker) as other, ThreadPoolExecutor() as pool:
        first = other.join(leader.group_id)
        assert first.error_code.value == MEMBER_ID_REQUIRED
        joining = pool.submit(other.join, leader.group_id, member_id=first.member_id)
        again = stranger.join(leader.group_id, member_id=leader.member_id)
        while again.generation_id == leader.generation:  # the other's request may not have come yet
            again = stranger.join(leader.group_id, member_id=leader.member_id)
        follower_answer = joining.result()
        leader = leader._replace(generation=again.generation_id)
        follower = leader._replace(member_id=follower_answer.member_id)
        assert again.leader == leader.member_id == follower_answer.leader
        # The follower claims everything for itself; it is made to wait for the leader like anybody else.
        greedy = pool.submit(other.sync, follower, {follower.member_id: b"all", leader.member_id: b"none"})
        shares = {leader.member_id: b"mine", follower.member_id: b"yours", "stranger": b"theirs"}
        assert stranger.sync(leader, shares).assignment == b"mine"
        answer = greedy.result()
        assert (answer.error_code.value, answer.assignment) == (NONE, b"yours")
        # Whoever brings an assignment to a group that is shared out already changes nothing.
        late = other.sync(follower, {leader.member_id: b"stolen", follower.member_id: b"stolen"})
        assert late.assignment == b"yours"
        assert stranger.sync(leader, {}).assignment == b"mine"


def test_a_protocol_that_nobody_else_speaks_is_refused(stranger: Stranger) -> None:
    member = stranger.stable()
    for fields in (
        {"protocols": [{"name": "roundrobin", "metadata": b""}]},
        {"protocols": []},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    ):
        assert stranger.join(member.group_id, **fields).error_code.value == INCONSISTENT_PROTOCOL
    assert stranger.sync(member, {}, protocol_type="connect").error_code.value == INCONSISTENT_PROTOCOL
    assert stranger.heartbeat_code(member) == NONE


# Sizes


def test_ten_megabytes_of_metadata_close_the_connection(broker: LocalBroker) -> None:
    group_id, before = fresh("g"), resident_bytes(broker)
    with Stranger(broker) as greedy, pytest.raises((BrokerUnreachable, OSError)):
        greedy.join(group_id, protocols=[{"name": "range", "metadata": bytes(10 * MIB)}])
    with Stranger(broker) as next_client:
        assert group_id not in next_client.groups()
    assert resident_bytes(broker) - before < 32 * MIB


@pytest.mark.parametrize("share", [1, 4], ids=["one protocol", "four protocols"])
def test_metadata_that_no_record_could_hold_is_refused_at_the_door(
    broker: LocalBroker, stranger: Stranger, share: int
) -> None:
    """Two megabytes pass as a request. What a group knows of a member must fit into a record of its topic."""
    group_id, before = fresh("g"), resident_bytes(broker)
    protocols = [{"name": f"p{index}", "metadata": bytes(2 * MIB // share)} for index in range(share)]
    for _ in range(5):
        assert stranger.join(group_id, protocols=protocols).error_code.value == MESSAGE_TOO_LARGE
        assert stranger.join(group_id, protocols=protocols, version=3).error_code.value == MESSAGE_TOO_LARGE
    assert group_id not in stranger.groups()
    assert not stranger.is_in_a_log(group_id)
    assert resident_bytes(broker) - before < 32 * MIB


def test_an_assignment_that_no_record_could_hold_is_refused_and_the_leader_may_try_again(stranger: Stranger) -> None:
    member = stranger.joined()
    for _ in range(3):
        assert stranger.sync(member, {member.member_id: b"greedy" * (MIB // 3)}).error_code.value == MESSAGE_TOO_LARGE
    assert not stranger.is_in_a_log("greedy")
    assert stranger.sync(member, {member.member_id: b"less"}).assignment == b"less"


def test_names_that_cannot_be_written_down_are_refused(broker: LocalBroker, stranger: Stranger) -> None:
    group_id = fresh("g")
    too_long = "x" * 40_000
    for fields in (
        {"group_instance_id": too_long},
        {"protocol_type": too_long},
        {"protocols": [{"name": too_long, "metadata": b""}]},
    ):
        assert stranger.join(group_id, **fields).error_code.value == 42
    assert group_id not in stranger.groups()


def test_a_client_id_of_any_length_names_a_member(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def verbose_request(request: Any, correlation_id: int, _: str) -> bytes:
        return encode_request(request, correlation_id, "c" * 32_767)

    monkeypatch.setattr("headrace.client.sync.transport.encode_request", verbose_request)
    with Stranger(broker) as verbose:
        member = verbose.stable()
        assert verbose.heartbeat_code(member) == NONE


# Requests that do not wait for one another


def test_who_leaves_before_its_join_is_answered_holds_nobody_up(broker: LocalBroker, stranger: Stranger) -> None:
    member = stranger.stable()
    newcomer = member._replace(member_id=stranger.join(member.group_id, version=5).member_id)
    goodbye = string(member.group_id) + pack(">i", 1) + string(newcomer.member_id) + string(None)
    both = request(ApiKey.JOIN_GROUP, 5, join_body(newcomer), 1) + request(ApiKey.LEAVE_GROUP, 3, goodbye, 2)
    with RawConnection(broker.port) as impatient:
        impatient.send(both)
        assert unpack(">iih", impatient.receive()[:10]) == (1, 0, UNKNOWN_MEMBER), "it waited for the other member"
        assert unpack(">iih", impatient.receive()[:10]) == (2, 0, NONE)
    again = stranger.join(member.group_id, member_id=member.member_id)
    assert (again.error_code.value, len(again.members)) == (NONE, 1)


def join_body(member: Member) -> bytes:
    """JoinGroup version 5."""
    sessions = pack(">ii", SESSION_MS, SESSION_MS)
    protocols = pack(">i", 1) + string("range") + pack(">i", 1) + b"m"
    return string(member.group_id) + sessions + string(member.member_id) + string(None) + string("consumer") + protocols


# Names of groups

ODD_NAMES = ["ü", "日本語", "a b", "a\tb\nc", "a\0b", "../../etc/passwd", ".", "..", "a/b", "\\", "'; drop", "🦀" * 100]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_any_characters_name_a_group(stranger: Stranger, name: str) -> None:
    topic, group_id = stranger.create_topic(), name + fresh("")
    member = stranger.stable(group_id=group_id)
    named = {"member_id": member.member_id, "generation": member.generation}
    assert stranger.commit_code(group_id, topic, offset=7, **named) == NONE
    assert stranger.committed(group_id, topic) == 7
    assert group_id in stranger.groups()
    assert stranger.leave(member) == NONE
    assert stranger.ask(ApiKey.DELETE_GROUPS, groups_names=(group_id,)).results[0].error_code.value == NONE
    assert group_id not in stranger.groups()


@pytest.mark.parametrize("name", ["", "x" * MIB, "ü" * 20_000], ids=["empty", "a megabyte", "40,000 bytes"])
def test_a_group_without_a_name_or_with_one_that_cannot_be_written_is_refused(stranger: Stranger, name: str) -> None:
    topic, member = stranger.create_topic(), stranger.stable()._replace(group_id=name)
    before = stranger.groups()
    assert stranger.join(name).error_code.value == INVALID_GROUP_ID
    assert stranger.sync(member, {}).error_code.value == INVALID_GROUP_ID
    assert stranger.heartbeat_code(member) == INVALID_GROUP_ID
    assert stranger.leave(member) == INVALID_GROUP_ID
    assert stranger.commit_code(name, topic) == INVALID_GROUP_ID
    assert stranger.groups() <= before


# Commits


def test_offsets_of_a_topic_that_was_deleted_are_refused_and_gone(stranger: Stranger) -> None:
    topic, group_id = stranger.create_topic(), fresh("g")
    assert stranger.commit_code(group_id, topic) == NONE
    topic_id = stranger.ask(ApiKey.METADATA, topics=[{"name": topic}]).topics[0].topic_id
    deleted = stranger.ask(ApiKey.DELETE_TOPICS, topics=[{"name": topic}], timeout=5000)
    assert deleted.responses[0].error_code.value == NONE
    assert stranger.commit_code(group_id, topic) == UNKNOWN_TOPIC
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    by_id = stranger.ask(
        ApiKey.OFFSET_COMMIT,
        10,
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"topic_id": topic_id, "partitions": [row]}],
    )
    assert by_id.topics[0].partitions[0].error_code.value == UNKNOWN_TOPIC_ID
    assert stranger.committed(group_id, topic) == -1
    assert group_id not in stranger.groups(), "a group of offsets alone goes with them"


def test_a_note_that_is_too_long_is_refused_alone(stranger: Stranger) -> None:
    topic, group_id = stranger.create_topic(), fresh("g")
    assert stranger.commit_code(group_id, topic, note="x" * 5_000) == 12
    assert stranger.committed(group_id, topic) == -1
    assert stranger.commit_code(group_id, topic, note="x" * 4_096) == NONE


# Time


@pytest.mark.parametrize("session_ms", [-1, -(2**31), 0, 99, 1_800_001, 2**31 - 1])
def test_a_session_outside_of_the_limits_is_refused(stranger: Stranger, session_ms: int) -> None:
    group_id = fresh("g")
    assert stranger.join(group_id, session_timeout=session_ms).error_code.value == INVALID_SESSION
    assert group_id not in stranger.groups()


@pytest.mark.parametrize("rebalance_ms", [-1, -(2**31)])
def test_a_negative_rebalance_timeout_is_the_session_timeout(stranger: Stranger, rebalance_ms: int) -> None:
    member = stranger.stable(rebalance_timeout=rebalance_ms)
    assert stranger.heartbeat_code(member) == NONE


# Crowds


def test_rule_21_thousands_of_ids_that_nobody_comes_back_with_are_forgotten(
    broker: LocalBroker, stranger: Stranger
) -> None:
    group_id, before = fresh("g"), resident_bytes(broker)
    for _ in range(5_000):
        assert stranger.join(group_id, session_timeout=1000).error_code.value == MEMBER_ID_REQUIRED
    assert stranger.is_forgotten(group_id)
    assert not stranger.is_in_a_log(group_id)
    assert resident_bytes(broker) - before < 32 * MIB


def test_a_member_gets_in_through_a_crowd_of_ids(stranger: Stranger) -> None:
    group_id = fresh("g")
    for _ in range(1_000):
        stranger.join(group_id, session_timeout=500)
    member = stranger.joined(group_id, session_timeout=6000)
    assert stranger.sync(member, {member.member_id: b"all"}).assignment == b"all"


def test_a_thousand_groups_of_one_pending_id_are_forgotten(stranger: Stranger) -> None:
    before = stranger.groups()
    names = [fresh("g") for _ in range(1_000)]
    for name in names:
        assert stranger.join(name, session_timeout=200).error_code.value == MEMBER_ID_REQUIRED
    assert all(stranger.is_forgotten(name) for name in names)
    assert stranger.groups() <= before


def test_a_member_that_never_syncs_is_not_waited_for(stranger: Stranger) -> None:
    member = stranger.joined()
    assert stranger.sync(member._replace(generation=9), {}).error_code.value == ILLEGAL_GENERATION
    # It is heard of all the time: only the wait for its share, which lasts as long as a rebalance may, can end.
    idle = stranger.joined(rebalance_timeout=500)
    while (code := stranger.heartbeat_code(idle)) in (NONE, REBALANCE_IN_PROGRESS):
        time.sleep(0.02)
    assert code == UNKNOWN_MEMBER
