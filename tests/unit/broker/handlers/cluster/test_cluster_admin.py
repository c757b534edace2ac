"""DescribeCluster, DescribeQuorum, DescribeLogDirs, DescribeTopicPartitions and ApiVersions."""

from typing import Any

import pytest

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.cluster.cluster_admin import handle_describe_cluster
from headrace.metadata.instrumented_store import WRITE
from headrace.model.errors import DiskFull
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import message_class, write_response
from headrace.security.authorization import ANONYMOUS
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit, build


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_described(kit: HandlerKit, version: int) -> None:
    answer = await kit.ask(ApiKey.DESCRIBE_CLUSTER, version)
    assert (answer.error_code.value, answer.cluster_id, answer.controller_id) == (0, kit.image.cluster_id, 1)
    assert [(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers] == [(1, "127.0.0.1", 9092, "here")]
    assert answer.cluster_authorized_operations == -(2**31)


async def test_operations_on_the_cluster_are_told_when_asked_for(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
    assert (answer.error_code.value, answer.cluster_authorized_operations) == (0, 0)


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (3, 115)])
async def test_this_is_an_endpoint_of_brokers(kit: HandlerKit, endpoint_type: int, code: int) -> None:
    # kio does not know these codes, so the bytes are looked at.
    call = RequestContext(kit, ANONYMOUS, "c", "h", "PLAINTEXT", ApiKey.DESCRIBE_CLUSTER, 1, 1)  # type: ignore[arg-type]
    request = build(message_class(ApiKey.DESCRIBE_CLUSTER, 2, "request"), {"endpoint_type": endpoint_type})
    body = write_response(ApiKey.DESCRIBE_CLUSTER, 1, await handle_describe_cluster(request, call))
    assert int.from_bytes(body[4:6], "big") == code


@pytest.mark.parametrize("version", range(3))
async def test_the_quorum_is_this_one_node(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    answer = await kit.ask(
        ApiKey.DESCRIBE_QUORUM,
        version,
        topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
    )
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code.value, partition.error_code.value, partition.leader_id) == (0, 0, 1)
    assert partition.high_watermark == kit.image.revision
    assert [(voter.replica_id, voter.log_end_offset) for voter in partition.current_voters] == [(1, kit.image.revision)]
    assert partition.observers == ()
    if version >= 1:
        assert partition.current_voters[0].last_caught_up_timestamp == kit.clock.wall_ms()
    if version >= 2:
        assert [(node.node_id, node.listeners[0].port) for node in answer.nodes] == [(1, 9092)]


async def test_quorum_has_no_leader_without_metadata_store(kit: HandlerKit) -> None:
    kit.store_figures.failed(WRITE, DiskFull("no space"))
    wanted = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = await kit.ask(ApiKey.DESCRIBE_QUORUM, 2, topics=wanted)
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code.value, partition.leader_id) == (0, -1)
    assert partition.error_message == "the metadata store does not accept writes (no space)"


async def test_other_partitions_have_no_quorum(kit: HandlerKit) -> None:
    await kit.create("t")
    answer = await kit.ask(ApiKey.DESCRIBE_QUORUM, topics=[{"topic_name": "t", "partitions": [{"partition_index": 0}]}])
    assert answer.topics[0].partitions[0].error_code.value == 3


async def test_describing_the_quorum_needs_permission(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll()
    assert (await kit.ask(ApiKey.DESCRIBE_QUORUM)).error_code.value == 31


@pytest.mark.parametrize("version", range(1, 6))
async def test_log_dirs_show_what_every_partition_holds(kit: HandlerKit, version: int) -> None:
    await kit.create("t", 2)
    kit.append("t", "a", index=1)
    answer = await kit.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
    (log_dir,) = answer.results
    assert (log_dir.log_dir, log_dir.error_code.value) == ("/data", 0)
    sizes = {row.partition_index: row.partition_size for row in log_dir.topics[0].partitions}
    assert sizes == {0: 0, 1: kit.partition("t", 1).size_bytes}
    assert {(row.offset_lag, row.is_future_key) for row in log_dir.topics[0].partitions} == {(0, False)}
    if version >= 4:
        assert (log_dir.total_bytes, log_dir.usable_bytes) == (-1, -1), "memory has no disk behind it"
    if version >= 5:
        assert not log_dir.is_cordoned


async def test_log_dirs_show_only_what_was_asked_for(kit: HandlerKit) -> None:
    await kit.create("t", 3)
    await kit.create("u")
    answer = await kit.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=[{"topic": "t", "partitions": (2, 9)}])
    topics = answer.results[0].topics
    assert [(topic.name, [row.partition_index for row in topic.partitions]) for topic in topics] == [("t", [2])]


async def test_describing_log_dirs_needs_permission(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
    assert (answer.error_code.value, answer.results) == (31, ())


def pages(answer: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [row.partition_index for row in topic.partitions]) for topic in answer.topics]


async def test_partitions_are_described_topic_by_topic(kit: HandlerKit) -> None:
    topic_id = await kit.create("b", 2)
    await kit.create("a")
    answer = await kit.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    assert pages(answer) == [("a", [0]), ("b", [0, 1])]
    assert answer.next_cursor is None
    row = answer.topics[1].partitions[0]
    assert answer.topics[1].topic_id == topic_id
    assert (row.leader_id, row.replica_nodes, row.isr_nodes, row.offline_replicas) == (1, (1,), (1,), ())
    assert row.leader_epoch == kit.partition("b").leader_epoch
    assert answer.topics[1].topic_authorized_operations > 0


async def test_a_long_list_comes_in_pages(kit: HandlerKit) -> None:
    await kit.create("a", 3)
    await kit.create("b", 2)
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        answer = await kit.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, cursor=cursor, response_partition_limit=2)
        seen += [(name, index) for name, indexes in pages(answer) for index in indexes]
        if answer.next_cursor is None:
            break
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


async def test_a_page_is_never_larger_than_the_brokers_limit() -> None:
    kit = await HandlerKit(max_request_partition_size_limit="2").start()
    await kit.create("a", 3)
    answer = await kit.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, response_partition_limit=1000)
    assert pages(answer) == [("a", [0, 1])]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("a", 2)


async def test_topics_that_are_not_there_have_their_own_rows(kit: HandlerKit) -> None:
    await kit.create("t")
    answer = await kit.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "t"}, {"name": "no-such-topic"}, {"name": "a b"}]
    )
    assert {topic.name: topic.error_code.value for topic in answer.topics} == {"t": 0, "no-such-topic": 3, "a b": 17}


@pytest.mark.parametrize(
    "cursor", [{"topic_name": "u", "partition_index": 0}, {"topic_name": "t", "partition_index": -1}]
)
async def test_a_cursor_that_points_nowhere_is_an_invalid_request(kit: HandlerKit, cursor: dict[str, Any]) -> None:
    await kit.create("t")
    answer = await kit.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "t"}], cursor=cursor)
    assert [(topic.name, topic.error_code.value) for topic in answer.topics] == [("t", 42)]


async def test_a_cursor_past_the_partitions_of_a_topic_goes_on_with_the_next(kit: HandlerKit) -> None:
    await kit.create("a")
    await kit.create("b")
    answer = await kit.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, cursor={"topic_name": "a", "partition_index": 7})
    assert pages(answer) == [("a", []), ("b", [0])]


async def test_topics_that_may_not_be_described_are_denied_or_left_out(kit: HandlerKit) -> None:
    await kit.create("mine")
    await kit.create("yours")
    kit.authorizer = DenyAll(names=["mine"])
    everything = await kit.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    assert [topic.name for topic in everything.topics] == ["mine"]
    asked = await kit.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "yours"}, {"name": "mine"}])
    assert {topic.name: topic.error_code.value for topic in asked.topics} == {"mine": 0, "yours": 29}


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_are_told_to_anybody(kit: HandlerKit, version: int) -> None:
    kit.authorizer = DenyAll()
    software = {"client_software_name": "test", "client_software_version": "1.0"} if version >= 3 else {}
    answer = await kit.ask(ApiKey.API_VERSIONS, version, **software)
    assert answer.error_code.value == 0
    assert answer.api_keys


async def test_a_forged_software_name_is_an_invalid_request(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.API_VERSIONS, 3, client_software_name="a\nb", client_software_version="1")
    assert answer.error_code.value == 42
