"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments and AlterReplicaLogDirs on one node."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from headrace.core.image import records
from headrace.core.image.model import NO_LEADER, PartitionRegistration, TopicImage
from headrace.model.errors import StorageError
from headrace.protocol.api import ApiKey
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

PREFERRED, UNCLEAN = 0, 1


def codes(topics: Any, name: str, rows: str, number: str) -> dict[str, list[tuple[int, int]]]:
    return {
        getattr(topic, name): [(getattr(row, number), row.error_code.value) for row in getattr(topic, rows)]
        for topic in topics
    }


def elected(answer: Any) -> dict[str, list[tuple[int, int]]]:
    return codes(answer.replica_election_results, "topic", "partition_result", "partition_id")


def reassigned(answer: Any) -> dict[str, list[tuple[int, int]]]:
    return codes(answer.responses, "name", "partitions", "partition_index")


def moved(answer: Any) -> dict[str, list[tuple[int, int]]]:
    return codes(answer.results, "topic_name", "partitions", "partition_index")


def wishes(topic: str, *partitions: tuple[int, tuple[int, ...] | None]) -> dict[str, Any]:
    rows = [{"partition_index": index, "replicas": replicas} for index, replicas in partitions]
    return {"name": topic, "partitions": rows}


def register(kit: HandlerKit, node_id: int) -> None:
    kit.image.apply(kit.image.revision + 1, {records.broker_key(node_id): records.encode_broker((), None)})


def change_state(kit: HandlerKit, topic: str, **changes: Any) -> None:
    known = kit.image.topics[topic]
    states = [state._replace(**changes) for state in known.partitions]
    kit.image.apply(kit.image.revision + 1, records.block_writes(known.topic_id, states, range(len(states))))


# ElectLeaders


@pytest.mark.parametrize("version", range(3))
async def test_no_election_is_needed_where_the_preferred_replica_leads(kit: HandlerKit, version: int) -> None:
    await kit.create("t", 2)
    answer = await kit.ask(
        ApiKey.ELECT_LEADERS,
        version,
        topic_partitions=[{"topic": "t", "partitions": (0, 1, 2)}, {"topic": "x", "partitions": (0,)}],
    )
    assert elected(answer) == {"t": [(0, 84), (1, 84), (2, 3)], "x": [(0, 3)]}
    if version >= 1:
        assert answer.error_code.value == 0


async def test_an_unclean_election_is_not_needed_while_somebody_leads(kit: HandlerKit) -> None:
    await kit.create("t")
    wanted = [{"topic": "t", "partitions": (0, -1)}]
    answer = await kit.ask(ApiKey.ELECT_LEADERS, election_type=UNCLEAN, topic_partitions=wanted)
    assert elected(answer) == {"t": [(0, 84), (-1, 3)]}


@pytest.mark.parametrize("version", range(3))
async def test_who_asks_about_all_partitions_hears_nothing_of_those_that_need_no_election(
    kit: HandlerKit, version: int
) -> None:
    await kit.create("t", 2)
    await kit.create("u")
    answer = await kit.ask(ApiKey.ELECT_LEADERS, version, topic_partitions=None)
    assert elected(answer) == {"t": [], "u": []}


async def test_a_preferred_replica_that_is_not_there_cannot_be_elected(kit: HandlerKit) -> None:
    await kit.create("t")
    change_state(kit, "t", replicas=(2, 1))
    for wanted in ([{"topic": "t", "partitions": (0,)}], None):
        answer = await kit.ask(ApiKey.ELECT_LEADERS, election_type=PREFERRED, topic_partitions=wanted)
        assert elected(answer) == {"t": [(0, 80)]}


async def test_a_partition_without_a_leader_has_nobody_to_elect(kit: HandlerKit) -> None:
    await kit.create("t")
    change_state(kit, "t", replicas=(2,), isr=(), elr=(2,), leader=NO_LEADER)
    answer = await kit.ask(ApiKey.ELECT_LEADERS, election_type=UNCLEAN, topic_partitions=None)
    assert elected(answer) == {"t": [(0, 83)]}


async def test_an_election_of_an_unknown_type_is_refused(kit: HandlerKit) -> None:
    await kit.create("t")
    wanted = [{"topic": "t", "partitions": (0,)}]
    answer = await kit.ask(ApiKey.ELECT_LEADERS, election_type=7, topic_partitions=wanted)
    assert (answer.error_code.value, elected(answer)) == (42, {"t": [(0, 42)]})
    answer = await kit.ask(ApiKey.ELECT_LEADERS, election_type=7, topic_partitions=None)
    assert (answer.error_code.value, elected(answer)) == (42, {})


@pytest.mark.parametrize("version", range(3))
async def test_electing_leaders_needs_permission(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.ELECT_LEADERS, version, topic_partitions=[{"topic": "t", "partitions": (0,)}])
    assert elected(answer) == {"t": [(0, 31)]}
    if version >= 1:
        assert answer.error_code.value == 31


async def test_a_long_election_lets_others_run() -> None:
    kit = await HandlerKit().start(with_logs=False)
    await kit.create("t", 5_000)
    others_ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(others_ran.set)
    wanted = [{"topic": "t", "partitions": tuple(range(5_000))}]
    answer = await kit.ask(ApiKey.ELECT_LEADERS, topic_partitions=wanted)
    assert others_ran.is_set()
    assert len(elected(answer)["t"]) == 5_000
    await kit.controller.stop()


# AlterPartitionReassignments and ListPartitionReassignments


@pytest.mark.parametrize("version", range(2))
async def test_replicas_may_stay_where_they_are(kit: HandlerKit, version: int) -> None:
    await kit.create("t", 2)
    before = kit.image.topics["t"]
    answer = await kit.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, topics=[wishes("t", (0, (1,)), (1, (1,)))])
    assert (answer.error_code.value, answer.error_message) == (0, None)
    assert reassigned(answer) == {"t": [(0, 0), (1, 0)]}
    assert kit.image.topics["t"] is before


@pytest.mark.parametrize("replicas", [(9,), (1, 9), (-1,), (), (1, 1)])
async def test_replicas_need_brokers_that_exist_once_each(kit: HandlerKit, replicas: tuple[int, ...]) -> None:
    await kit.create("t")
    for allowed in (True, False):
        answer = await kit.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            allow_replication_factor_change=allowed,
            topics=[wishes("t", (0, replicas))],
        )
        assert reassigned(answer) == {"t": [(0, 39)]}
        assert answer.responses[0].partitions[0].error_message
        assert answer.allow_replication_factor_change is allowed


async def test_a_changed_number_of_replicas_is_refused_on_demand(kit: HandlerKit) -> None:
    await kit.create("t")
    register(kit, 2)
    kit.image.apply(kit.image.revision + 1, {records.session_key(2): records.encode_session()})
    wanted = [wishes("t", (0, (1, 2)))]
    answer = await kit.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, allow_replication_factor_change=False, topics=wanted)
    assert reassigned(answer) == {"t": [(0, 38)]}


@pytest.mark.parametrize("replicas", [(2,), (1, 2)])
async def test_a_move_that_nobody_would_carry_out_is_not_promised(kit: HandlerKit, replicas: tuple[int, ...]) -> None:
    await kit.create("t")
    register(kit, 2)
    answer = await kit.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=[wishes("t", (0, replicas))])
    assert reassigned(answer) == {"t": [(0, 39)]}
    assert kit.image.topics["t"].partitions[0].replicas == (1,)


async def test_what_is_not_in_progress_cannot_be_cancelled(kit: HandlerKit) -> None:
    await kit.create("t")
    wanted = [wishes("t", (0, None), (5, None)), wishes("x", (0, None), (1, (9,)))]
    answer = await kit.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=wanted)
    assert reassigned(answer) == {"t": [(0, 85), (5, 3)], "x": [(0, 3), (1, 3)]}


async def test_reassigning_needs_permission(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=[wishes("t", (0, (1,)))])
    assert (answer.error_code.value, reassigned(answer)) == (31, {"t": [(0, 31)]})


@pytest.mark.parametrize("topics", [None, (), [{"name": "t", "partition_indexes": (0, 7)}, {"name": "x"}]])
async def test_no_reassignment_is_ever_in_progress(kit: HandlerKit, topics: Any) -> None:
    await kit.create("t")
    answer = await kit.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=topics)
    assert (answer.error_code.value, answer.error_message, answer.topics) == (0, None, ())


async def test_listing_reassignments_needs_permission(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None)
    assert (answer.error_code.value, answer.topics) == (31, ())


# AlterReplicaLogDirs


def into(path: str, **topics: tuple[int, ...]) -> dict[str, Any]:
    return {"path": path, "topics": [{"name": name, "partitions": held} for name, held in topics.items()]}


@pytest.mark.parametrize("version", range(1, 3))
async def test_a_replica_may_stay_in_its_directory_and_go_to_no_other(kit: HandlerKit, version: int) -> None:
    await kit.create("t", 2)
    dirs = [into("/data", t=(0, 2), x=(0,)), into("/elsewhere", t=(1, 3), y=(0,))]
    answer = await kit.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
    assert moved(answer) == {"t": [(0, 0), (2, 3), (1, 57), (3, 57)], "x": [(0, 3)], "y": [(0, 57)]}


async def test_the_directory_is_the_one_that_is_described(kit: HandlerKit) -> None:
    await kit.create("t")
    described = await kit.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
    answer = await kit.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=[into(described.results[0].log_dir, t=(0,))])
    assert moved(answer) == {"t": [(0, 0)]}


async def test_the_last_directory_that_is_named_for_a_replica_counts(kit: HandlerKit) -> None:
    await kit.create("t")
    dirs = [into("/elsewhere", t=(0,)), into("/data", t=(0, 0))]
    assert moved(await kit.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=dirs)) == {"t": [(0, 0)]}


async def test_a_replica_on_another_broker_is_not_available_here(kit: HandlerKit) -> None:
    far = TopicImage("far", UUID(int=9), (PartitionRegistration((2,), (2,), 2, 0, 0),), {})
    assert list(kit.partitions.follow_topic(far)) == []
    assert moved(await kit.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=[into("/data", far=(0,))])) == {"far": [(0, 9)]}


async def test_a_replica_that_failed_cannot_be_moved(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.partition("t").go_offline(StorageError("the disk is gone"))
    assert moved(await kit.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=[into("/data", t=(0,))])) == {"t": [(0, 56)]}


async def test_moving_replicas_needs_permission(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.authorizer = DenyAll()
    assert moved(await kit.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=[into("/data", t=(0,))])) == {"t": [(0, 31)]}
