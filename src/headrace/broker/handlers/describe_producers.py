"""DescribeProducers: who has written to a partition with idempotence, and what is still open."""

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, ProducerId, error_of, i32, i64
from headrace.broker.handlers.shared import allows
from headrace.core.cluster.names import check_topic_name
from headrace.model.errors import HeadraceError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for
from headrace.storage.producer_entry import ProducerEntry

READ_TOPIC = access_for(ApiKey.DESCRIBE_PRODUCERS, ResourceType.TOPIC, Operation.READ)

NO_TRANSACTION = -1


async def handle(request: DescribeProducersRequest, call: Call) -> DescribeProducersResponse:
    topics = tuple(
        TopicResponse(
            name=topic.name,
            partitions=tuple(_partition(topic.name, partition, call) for partition in topic.partition_indexes),
        )
        for topic in request.topics
    )
    return DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=topics)


def _partition(topic: str, index: int, call: Call) -> PartitionResponse:
    try:
        check_topic_name(topic)
        if not allows(call, READ_TOPIC, topic):
            raise TopicDenied(f"{topic} may not be read by {call.principal}")
        partition = call.broker.partitions.get(topic, index)
        partition.check_leader()
        producers = tuple(map(_producer, partition.log.producers.active()))
    except HeadraceError as error:
        code, message = error_of(error)
        return PartitionResponse(
            partition_index=i32(index), error_code=code, error_message=message, active_producers=()
        )
    return PartitionResponse(partition_index=i32(index), error_code=NO_ERROR, active_producers=producers)


def _producer(entry: ProducerEntry) -> ProducerState:
    open_since = entry.txn_first_offset
    return ProducerState(
        producer_id=ProducerId(entry.producer_id),
        producer_epoch=i32(entry.epoch),
        last_sequence=i32(entry.last_sequence),
        last_timestamp=i64(entry.last_timestamp),
        coordinator_epoch=i32(entry.coordinator_epoch),
        current_txn_start_offset=i64(NO_TRANSACTION if open_since is None else open_since),
    )
