"""DescribeLogDirs: what lies in our data directory, and how much room is left."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, TopicName, i32, i64, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.partition import Partition
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v4.response import (
        DescribeLogDirsPartition,
        DescribeLogDirsResponse,
        DescribeLogDirsTopic,
    )

DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_LOG_DIRS, ResourceType.CLUSTER, Operation.DESCRIBE)

UNKNOWN_SIZE = -1


async def handle(request: "DescribeLogDirsRequest", call: Call) -> "DescribeLogDirsResponse":
    from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse, DescribeLogDirsResult

    if not allows(call, DESCRIBE_CLUSTER):
        denied = wire_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=denied, results=())
    total, usable = _room(call)
    result = DescribeLogDirsResult(
        error_code=NO_ERROR,
        log_dir=_absolute(call.broker.log_dir.path),
        topics=_topics(_asked(request, call)),
        total_bytes=i64(total),
        usable_bytes=i64(usable),
    )
    return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, results=(result,))


def _asked(request: "DescribeLogDirsRequest", call: Call) -> Iterable[Partition]:
    if request.topics is None:
        return call.broker.partitions.all()
    asked = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return [partition for partition in call.broker.partitions.all() if (partition.topic, partition.index) in asked]


def _topics(partitions: Iterable[Partition]) -> "tuple[DescribeLogDirsTopic, ...]":
    from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsTopic

    rows: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in partitions:
        rows.setdefault(partition.topic, []).append(_row(partition))
    return tuple(DescribeLogDirsTopic(name=TopicName(topic), partitions=tuple(held)) for topic, held in rows.items())


def _row(partition: Partition) -> "DescribeLogDirsPartition":
    from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsPartition

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
