"""Produce and StreamProduce.

Records are queued in the producer in request order, and their delivery reports are collected into one result per
request. A stream has a bounded number of unacknowledged requests and sends its acks in request order.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.api.grpc.call import Write, until_shutdown
from headrace.api.grpc.clients import Clients
from headrace.api.grpc.errors import RpcError, Status, failed, invalid, stopping
from headrace.api.grpc.validation import topic_name, within
from headrace.client.aio.client import Cluster, TopicMetadata
from headrace.client.aio.produce import ACKS_ALL, ACKS_LEADER, send_batch
from headrace.client.aio.producer import ANY_PARTITION, NOW, AsyncProducer
from headrace.client.aio.producer_pool import Acks
from headrace.client.core.errors import KafkaApiError
from headrace.model.errors import HeadraceError
from headrace.rpc import headrace_pb2 as pb

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message


NOT_WRITTEN = -1
_ACKS = {pb.ACKS_UNSPECIFIED: None, pb.ACKS_ALL: Acks.ALL, pb.ACKS_LEADER: Acks.LEADER, pb.ACKS_NONE: Acks.NONE}


class Receipt:
    """Collects the outcomes of one request's records. Complete when every record has been written or has failed."""

    def __init__(self, count: int) -> None:
        self.partitions = [NOT_WRITTEN] * count
        self.offsets = [NOT_WRITTEN] * count
        self.written = 0
        self.failure: RpcError | None = None  # the first one
        self._left = count
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def complete(self) -> None:
        # The waiting call may be cancelled. Its records are sent nevertheless.
        await asyncio.shield(self._complete)

    def when_complete(self, do: Callable[[], None]) -> None:
        self._complete.add_done_callback(lambda _: do())

    def wrote(self, index: int, partition: int, offset: int) -> None:
        self.partitions[index], self.offsets[index] = partition, offset
        self.written += 1
        self._answered(1)

    def failed(self, error: Exception, count: int = 1) -> None:
        if self.failure is None:
            self.failure = failed(error)
        self._answered(count)

    def _answered(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._complete.set_result(None)


async def send(clients: Clients, facts: TopicMetadata, request: pb.ProduceRequest) -> Receipt:
    """Queues all records in order before it returns. The receipt collects their outcomes."""
    acks = _acks(request)
    partition = await _partition(clients, facts, request)
    if request.record_batch:
        return await _send_batch(clients.cluster, facts.name, partition, request, acks)
    count, size = len(request.records), request.ByteSize()
    if not count:
        raise invalid("records is empty: send at least one")
    await clients.room.take(count, size)
    receipt = Receipt(count)
    receipt.when_complete(lambda: clients.room.give_back(count, size))
    _Sending(clients.publisher, facts.name, partition, acks, receipt).queue(request.records)
    return receipt


def _acks(request: pb.ProduceRequest) -> Acks | None:
    if request.acks not in _ACKS:
        raise invalid(f"acks is {request.acks}; it may be 0 to 3")
    return _ACKS[request.acks]


async def _partition(clients: Clients, facts: TopicMetadata, request: pb.ProduceRequest) -> int:
    if not request.HasField("partition"):
        return ANY_PARTITION
    within("partition", request.partition, 0)
    if request.partition >= len(facts.partitions):
        await clients.cluster.patiently(lambda: clients.cluster.partition(facts.name, request.partition))
        await clients.publisher.learn(await clients.cluster.topic(facts.name))
    return request.partition


async def _send_batch(
    cluster: Cluster, topic: str, partition: int, request: pb.ProduceRequest, acks: Acks | None
) -> Receipt:
    if request.records:
        raise invalid("records and record_batch exclude each other: send one of them")
    if partition == ANY_PARTITION:
        raise invalid("partition is missing: a record batch is not decoded, so no partitioner can choose one")
    if acks is Acks.NONE:
        raise invalid("acks is ACKS_NONE: a record batch is sent with ACKS_ALL or ACKS_LEADER")
    level = ACKS_LEADER if acks is Acks.LEADER else ACKS_ALL
    receipt = Receipt(1)
    receipt.wrote(0, partition, await send_batch(cluster, topic, partition, request.record_batch, level))
    return receipt


class _Sending:
    """Queues one request's records in the producer. Never waits: the send budget has reserved their space."""

    def __init__(
        self, publisher: AsyncProducer, topic: str, partition: int, acks: Acks | None, receipt: Receipt
    ) -> None:
        self._publisher, self._topic, self._partition, self._acks = publisher, topic, partition, acks
        self._receipt = receipt

    def queue(self, records: Sequence[pb.Record]) -> None:
        together: list[dict[str, Any]] = []
        for index, record in enumerate(records):
            if record.timestamp_ms or record.headers:  # librdkafka's bulk call supports neither
                self._queue_together(together)
                together = []
                self._queue_alone(index, record)
                continue
            message: dict[str, Any] = {"callback": partial(self._delivered, index)}
            key, value = record.key, record.value
            # HasField costs as much as a read; called only to distinguish empty from absent.
            if key or record.HasField("key"):
                message["key"] = key
            if value or record.HasField("value"):
                message["value"] = value
            together.append(message)
        self._queue_together(together)

    def _queue_together(self, messages: list[dict[str, Any]]) -> None:
        if not messages:
            return
        try:
            taken = self._publisher.send_many(self._topic, messages, self, self._acks, self._partition)
        except Exception as error:
            self._receipt.failed(error, len(messages))
            return
        if taken < len(messages):
            for message in messages:
                if (refusal := message.get("_error")) is not None:
                    self._receipt.failed(self._publisher.failure(self._topic, refusal))

    def _queue_alone(self, index: int, record: pb.Record) -> None:
        key = record.key if record.HasField("key") else None
        value = record.value if record.HasField("value") else None
        headers = [(one.name, one.value if one.HasField("value") else None) for one in record.headers]
        message = (value, key, self._partition, record.timestamp_ms or NOW, headers)
        try:
            self._publisher.send_with_listener(self._topic, message, _Alone(self, index), self._acks)
        except Exception as error:
            self._receipt.failed(error)

    def _delivered(self, index: int, error: "KafkaError | None", message: "Message") -> None:
        self._publisher.delivery_done()
        if error is not None:
            self._receipt.failed(self._publisher.failure(self._topic, error))
            return
        offset = message.offset()
        self._receipt.wrote(index, message.partition() or 0, NOT_WRITTEN if offset is None or offset < 0 else offset)

    def delivered(self, error: "KafkaError | None", message: "Message") -> None:
        raise AssertionError("every message has a callback of its own")


class _Alone(NamedTuple):
    sending: _Sending
    number: int

    def delivered(self, error: "KafkaError | None", message: "Message", /) -> None:
        self.sending._delivered(self.number, error, message)


# With a thousand records per request this covers more than one round trip to the broker. With one record per request it
# still fills record batches.
UNANSWERED_MAX = 256


async def produce(clients: Clients, request: pb.ProduceRequest) -> pb.ProduceResponse:
    receipt = await send(clients, await clients.topic_to_produce(topic_name(request.topic)), request)
    await receipt.complete()
    failure = receipt.failure
    if failure is not None:
        failure.more |= {"written": str(receipt.written), "failed": str(len(receipt.offsets) - receipt.written)}
        raise failure
    return pb.ProduceResponse(partitions=receipt.partitions, offsets=receipt.offsets)


async def stream_produce(clients: Clients, requests: AsyncIterator[pb.ProduceRequest], write: Write) -> None:
    unanswered: asyncio.Queue[Receipt | RpcError | None] = asyncio.Queue(UNANSWERED_MAX)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_read(clients, requests, unanswered))
        index = 0
        while (sent := await unanswered.get()) is not None:
            await write(await _ack(index, sent))
            index += 1
    if clients.stopping.is_set():
        raise stopping()


async def _read(
    clients: Clients, requests: AsyncIterator[pb.ProduceRequest], unanswered: "asyncio.Queue[Receipt | RpcError | None]"
) -> None:
    """Sends the requests of the stream. Stops reading at UNANSWERED_MAX; gRPC's flow control stops the client."""
    topic = ""
    async for request in until_shutdown(clients, requests):
        topic = request.topic or topic
        await unanswered.put(await _sent(clients, topic, request))
    await unanswered.put(None)


async def _sent(clients: Clients, topic: str, request: pb.ProduceRequest) -> Receipt | RpcError:
    """Sends one request. An invalid or rejected request gets an error of its own and the stream continues."""
    try:
        facts: TopicMetadata = await clients.topic_to_produce(topic_name(topic))
        return await send(clients, facts, request)
    except (RpcError, KafkaApiError, HeadraceError) as error:
        return _alone(failed(error))


async def _ack(index: int, sent: Receipt | RpcError) -> pb.ProduceAck:
    if isinstance(sent, RpcError):
        return pb.ProduceAck(index=index, failure=sent.in_stream())
    await sent.complete()
    ack = pb.ProduceAck(index=index, partitions=sent.partitions, offsets=sent.offsets)
    if sent.failure is not None:
        ack.failure.CopyFrom(_alone(sent.failure).in_stream())
    return ack


def _alone(failure: RpcError) -> RpcError:
    """Returns the failure for its ack. Raises it, and so ends the stream, if the broker did not answer within
    librdkafka's retries: later requests would fail as well.
    """
    if failure.status is Status.UNAVAILABLE and failure.reason == "NO_ANSWER":
        raise failure
    return failure
