"""DescribeLogDirs: what lies in our data directory, and how much room is left."""

import os
from collections.abc import Iterable, Iterator
from typing import cast

from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, TopicName, i32, i64, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.partition import Partition
from headrace.broker.slices import in_slices
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.kafka_messages import encode_element
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_LOG_DIRS, ResourceType.CLUSTER, Operation.DESCRIBE)

UNKNOWN_SIZE = -1


async def handle(request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    if not allows(call, DESCRIBE_CLUSTER):
        denied = wire_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=denied, results=())
    total, usable = _room(call)
    result = DescribeLogDirsResult(
        error_code=NO_ERROR,
        log_dir=_absolute(call.broker.log_dir.path),
        topics=await _topics(_asked(request, call), call),
        total_bytes=i64(total),
        usable_bytes=i64(usable),
        is_cordoned=False,  # new partitions may always be placed here: there is no other directory
    )
    return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, results=(result,))


def _asked(request: DescribeLogDirsRequest, call: Call) -> Iterable[Partition]:
    if request.topics is None:
        return call.broker.partitions.all()
    asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return [partition for partition in call.broker.partitions.all() if (partition.topic, partition.index) in asked]


async def _topics(partitions: Iterable[Partition], call: Call) -> tuple[DescribeLogDirsTopic, ...]:
    """Encoded a topic at a time: tools ask about ten thousand partitions every half minute."""
    held: dict[str, list[Partition]] = {}
    for partition in partitions:
        held.setdefault(partition.topic, []).append(partition)
    encoded: list[bytes] = []

    def encode_each() -> Iterator[None]:
        for name, ours in held.items():
            topic = DescribeLogDirsTopic(name=TopicName(name), partitions=tuple(map(_row, ours)))
            encoded.append(encode_element(ApiKey.DESCRIBE_LOG_DIRS, call.api_version, "results.topics", topic))
            yield

    await in_slices(encode_each())
    return cast("tuple[DescribeLogDirsTopic, ...]", tuple(encoded))


def _row(partition: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=i32(partition.index),
        partition_size=i64(partition.size_bytes),
        # How far a replica is behind the high watermark: ours never is, since it sets it.
        offset_lag=i64(max(0, partition.high_watermark - partition.log_end_offset)),
        is_future_key=False,
    )


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _room(call: Call) -> tuple[int, int]:
    """All bytes of the disk, and those that are free."""
    if call.broker.settings.in_memory:
        return UNKNOWN_SIZE, UNKNOWN_SIZE
    disk = os.statvfs(call.broker.log_dir.path)
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
