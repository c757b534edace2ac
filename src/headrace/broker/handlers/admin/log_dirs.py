"""AlterReplicaLogDirs and DescribeLogDirs, for a broker with a single data directory.

AlterReplicaLogDirs succeeds for the directory that a replica is in and fails for every other. DescribeLogDirs returns
the replicas in the data directory and the free disk space.
"""

import os
from collections.abc import Iterable, Iterator
from typing import cast

from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
from kio.schema.alter_replica_log_dirs.v2.response import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, TopicName, i32, i64, wire_error
from headrace.broker.handlers.row_encoding import encoded_topics
from headrace.broker.replica.partition import Partition
from headrace.broker.runtime.cooperative import run_in_slices
from headrace.model.errors import ErrorCode, NotLeader, UnknownTopic
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import encode_element
from headrace.security.authorization import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.ALTER_REPLICA_LOG_DIRS, ResourceType.CLUSTER, Operation.ALTER)


async def handle_alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, call: RequestContext
) -> AlterReplicaLogDirsResponse:
    allowed = allows(call, ALTER_CLUSTER)
    ours = _alter_replica_log_dirs_absolute(call.broker.log_dir.path)

    def row(topic: str, index: int, path: str) -> AlterReplicaLogDirPartitionResult:
        code = _move(topic, index, path == ours, call) if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return AlterReplicaLogDirPartitionResult(partition_index=i32(index), error_code=wire_error(code))

    topics = (
        (topic, (row(topic, index, path) for index, path in paths.items())) for topic, paths in _wishes(request).items()
    )
    results = await encoded_topics(topics, _topic_row, "results.partitions", call)
    return AlterReplicaLogDirsResponse(throttle_time=NO_THROTTLE, results=results)


def _alter_replica_log_dirs_absolute(path: str) -> str:
    """Returns the path by which DescribeLogDirs names the directory."""
    return os.path.abspath(path)


def _wishes(request: AlterReplicaLogDirsRequest) -> dict[str, dict[int, str]]:
    """Returns topic → partition → directory. The request is keyed by directory; the last one with a partition wins."""
    wishes: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            wishes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, directory.path))
    return wishes


def _move(topic: str, index: int, is_ours: bool, call: RequestContext) -> ErrorCode:
    if not is_ours:
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        partition = call.broker.partitions.get(topic, index)
    except UnknownTopic as error:
        return error.code
    except NotLeader:
        return ErrorCode.REPLICA_NOT_AVAILABLE  # another broker has its replica
    return ErrorCode.NONE if partition.failure is None else ErrorCode.KAFKA_STORAGE_ERROR


def _topic_row(name: str, partitions: tuple[AlterReplicaLogDirPartitionResult, ...]) -> AlterReplicaLogDirTopicResult:
    return AlterReplicaLogDirTopicResult(topic_name=TopicName(name), partitions=partitions)


DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_LOG_DIRS, ResourceType.CLUSTER, Operation.DESCRIBE)

UNKNOWN_SIZE = -1


async def handle_describe_log_dirs(request: DescribeLogDirsRequest, call: RequestContext) -> DescribeLogDirsResponse:
    if not allows(call, DESCRIBE_CLUSTER):
        denied = wire_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=denied, results=())
    total, usable = _room(call)
    result = DescribeLogDirsResult(
        error_code=NO_ERROR,
        log_dir=_describe_log_dirs_absolute(call.broker.log_dir.path),
        topics=await _topics(_asked(request, call), call),
        total_bytes=i64(total),
        usable_bytes=i64(usable),
        is_cordoned=False,  # new partitions may always be placed here: there is no other directory
    )
    return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, results=(result,))


def _asked(request: DescribeLogDirsRequest, call: RequestContext) -> Iterable[Partition]:
    if request.topics is None:
        return call.broker.partitions.all()
    asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return [partition for partition in call.broker.partitions.all() if (partition.topic, partition.index) in asked]


async def _topics(partitions: Iterable[Partition], call: RequestContext) -> tuple[DescribeLogDirsTopic, ...]:
    """Builds and encodes one topic at a time: tools request ten thousand partitions every half minute."""
    held: dict[str, list[Partition]] = {}
    for partition in partitions:
        held.setdefault(partition.topic, []).append(partition)
    encoded: list[bytes] = []

    def encode_each() -> Iterator[None]:
        for name, ours in held.items():
            topic = DescribeLogDirsTopic(name=TopicName(name), partitions=tuple(map(_row, ours)))
            encoded.append(encode_element(ApiKey.DESCRIBE_LOG_DIRS, call.api_version, "results.topics", topic))
            yield

    await run_in_slices(encode_each())
    return cast("tuple[DescribeLogDirsTopic, ...]", tuple(encoded))


def _row(partition: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=i32(partition.index),
        partition_size=i64(partition.size_bytes),
        # Lag behind the high watermark; always 0 on the leader.
        offset_lag=i64(max(0, partition.high_watermark - partition.log_end_offset)),
        is_future_key=False,
    )


def _describe_log_dirs_absolute(path: str) -> str:
    return os.path.abspath(path)


def _room(call: RequestContext) -> tuple[int, int]:
    """Returns the disk's total and free bytes."""
    if call.broker.settings.in_memory:
        return UNKNOWN_SIZE, UNKNOWN_SIZE
    disk = os.statvfs(call.broker.log_dir.path)
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
