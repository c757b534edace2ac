"""Sends a complete record batch to the leader of its partition without decoding it.

A batch with a producer id is retried after a lost response, since the broker deduplicates it. Any other batch could
be appended twice, so it is retried only if it was certainly not appended.
"""

from datetime import timedelta
from typing import Any

from headrace.client.aio.client import Cluster
from headrace.client.core.errors import RETRIABLE_CODES, KafkaApiError
from headrace.model.errors import CorruptBatch, ErrorCode
from headrace.records.batch import BatchHeader
from headrace.records.record import checked_header

ACKS_ALL, ACKS_LEADER = -1, 1
# Errors after which the batch has certainly not been appended.
_NOT_WRITTEN = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


def checked(batch: bytes) -> BatchHeader:
    """Checks that the bytes are one batch of records and returns its header; the broker validates the rest."""
    header = checked_header(batch)
    if header.is_control or header.is_transactional:
        raise CorruptBatch("control batches and batches of transactions come from Kafka clients only")
    return header


async def send_batch(cluster: Cluster, topic: str, partition: int, batch: bytes, acks: int = ACKS_ALL) -> int:
    """Appends the batch and returns the offset of its first record."""
    from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
    from kio.schema.produce.v9.response import ProduceResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import Records, i16, i32, i32Timedelta

    repeatable = checked(batch).producer_id >= 0
    data = PartitionProduceData(index=i32(partition), records=Records.parse(batch))
    request = ProduceRequest(
        transactional_id=None,
        acks=i16(acks),
        timeout=i32Timedelta.parse(timedelta(seconds=cluster.request_timeout_s)),
        topic_data=(TopicProduceData(name=TopicName(topic), partition_data=(data,)),),
    )

    async def attempt() -> int:
        answer: Any = await cluster.call_leader(topic, partition, request, ProduceResponse)
        (row,) = answer.responses[0].partition_responses
        if row.error_code:
            cluster.forget(topic)
            raise KafkaApiError(int(row.error_code), row.error_message or f"{topic}-{partition}: {row.error_code.name}")
        return int(row.base_offset)

    return await cluster.patiently(attempt, RETRIABLE_CODES if repeatable else _NOT_WRITTEN)
