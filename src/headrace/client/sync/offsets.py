"""ListOffsets, OffsetCommit and OffsetFetch with the blocking client."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.client.sync.client import GROUP, Cluster, check
from headrace.model.ids import TopicPartition
from headrace.protocol.messages.list_offsets import CONSUMER, EARLIEST, LATEST

__all__ = ["EARLIEST", "LATEST", "Committed", "commit_offsets", "committed_offsets", "list_offsets"]

SIMPLE_GENERATION = -1  # a commit without a membership: accepted while the group is empty


class Committed(NamedTuple):
    offset: int
    metadata: str = ""


def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, int | None]:
    """Returns for each partition the first offset at or after its timestamp or special time; None if no record
    matches.
    """
    from kio.schema.list_offsets.v5.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
    from kio.schema.list_offsets.v5.response import ListOffsetsResponse
    from kio.schema.types import BrokerId, TopicName
    from kio.static.primitive import i8, i32, i64

    found: dict[TopicPartition, int | None] = {}
    for address, partitions in cluster.by_leader(times).items():
        topics = tuple(
            ListOffsetsTopic(
                name=TopicName(name),
                partitions=tuple(
                    ListOffsetsPartition(partition_index=i32(one.partition), timestamp=i64(times[one])) for one in ones
                ),
            )
            for name, ones in by_topic(partitions).items()
        )
        request = ListOffsetsRequest(
            replica_id=BrokerId(CONSUMER), isolation_level=i8(1 if read_committed else 0), topics=topics
        )
        for topic in cluster.connection(address).call(request, ListOffsetsResponse).topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, int(row.partition_index))
                check(row.error_code, f"offsets of {partition}")
                found[partition] = int(row.offset) if row.offset >= 0 else None
    return found


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
    from kio.schema.offset_commit.v8.request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )
    from kio.schema.offset_commit.v8.response import OffsetCommitResponse
    from kio.schema.types import GroupId, TopicName
    from kio.static.primitive import i32, i64

    topics = tuple(
        OffsetCommitRequestTopic(
            name=TopicName(name),
            partitions=tuple(
                OffsetCommitRequestPartition(
                    partition_index=i32(one.partition),
                    committed_offset=i64(offsets[one].offset),
                    committed_metadata=offsets[one].metadata,
                )
                for one in ones
            ),
        )
        for name, ones in by_topic(offsets).items()
    )
    request = OffsetCommitRequest(
        group_id=GroupId(group), generation_id_or_member_epoch=i32(SIMPLE_GENERATION), member_id="", topics=topics
    )
    answer = cluster.ask_coordinator(GROUP, group, request, OffsetCommitResponse)
    for topic in answer.topics:
        for row in topic.partitions:
            check(row.error_code, f"commit of {topic.name}-{row.partition_index} for the group {group}")


def committed_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], *, stable: bool
) -> dict[TopicPartition, Committed]:
    """Returns committed offsets; partitions without one are omitted.

    With `stable`, an offset in an open transaction raises KafkaApiError with UNSTABLE_OFFSET_COMMIT, which is
    retriable.
    """
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest, OffsetFetchRequestTopic
    from kio.schema.offset_fetch.v7.response import OffsetFetchResponse
    from kio.schema.types import GroupId, TopicName
    from kio.static.primitive import i32

    topics = tuple(
        OffsetFetchRequestTopic(name=TopicName(name), partition_indexes=tuple(i32(one.partition) for one in ones))
        for name, ones in by_topic(partitions).items()
    )
    request = OffsetFetchRequest(group_id=GroupId(group), topics=topics, require_stable=stable)
    answer = cluster.ask_coordinator(GROUP, group, request, OffsetFetchResponse)
    check(answer.error_code, f"offsets of the group {group}")
    found: dict[TopicPartition, Committed] = {}
    for topic in answer.topics:
        for row in topic.partitions:
            check(row.error_code, f"offset of {topic.name}-{row.partition_index} of the group {group}")
            if row.committed_offset >= 0:
                partition = TopicPartition(topic.name, int(row.partition_index))
                found[partition] = Committed(int(row.committed_offset), row.metadata or "")
    return found


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    grouped: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        grouped.setdefault(partition.topic, []).append(partition)
    return grouped
