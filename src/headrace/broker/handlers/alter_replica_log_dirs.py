"""AlterReplicaLogDirs, truthfully for one data directory: a replica may stay where it is, and go nowhere else."""

import os

from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
from kio.schema.alter_replica_log_dirs.v2.response import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, TopicName, i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import encoded_topics
from headrace.model.errors import ErrorCode, NotLeader, UnknownTopic
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.ALTER_REPLICA_LOG_DIRS, ResourceType.CLUSTER, Operation.ALTER)


async def handle(request: AlterReplicaLogDirsRequest, call: Call) -> AlterReplicaLogDirsResponse:
    allowed = allows(call, ALTER_CLUSTER)
    ours = _absolute(call.broker.log_dir.path)

    def row(topic: str, index: int, path: str) -> AlterReplicaLogDirPartitionResult:
        code = _move(topic, index, path == ours, call) if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return AlterReplicaLogDirPartitionResult(partition_index=i32(index), error_code=wire_error(code))

    topics = (
        (topic, (row(topic, index, path) for index, path in paths.items())) for topic, paths in _wishes(request).items()
    )
    results = await encoded_topics(topics, _topic_row, "results.partitions", call)
    return AlterReplicaLogDirsResponse(throttle_time=NO_THROTTLE, results=results)


def _absolute(path: str) -> str:
    """The name under which DescribeLogDirs shows a directory."""
    return os.path.abspath(path)


def _wishes(request: AlterReplicaLogDirsRequest) -> dict[str, dict[int, str]]:
    """Topic → partition → directory. The request goes by directories; the last that names a partition counts."""
    wishes: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            wishes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, directory.path))
    return wishes


def _move(topic: str, index: int, is_ours: bool, call: Call) -> ErrorCode:
    if not is_ours:
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        partition = call.broker.partitions.get(topic, index)
    except UnknownTopic as error:
        return error.code
    except NotLeader:
        return ErrorCode.REPLICA_NOT_AVAILABLE  # another broker holds it
    return ErrorCode.NONE if partition.failure is None else ErrorCode.KAFKA_STORAGE_ERROR


def _topic_row(name: str, partitions: tuple[AlterReplicaLogDirPartitionResult, ...]) -> AlterReplicaLogDirTopicResult:
    return AlterReplicaLogDirTopicResult(topic_name=TopicName(name), partitions=partitions)
