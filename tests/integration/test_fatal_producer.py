"""A producer with a fatal error is replaced: what waits is answered, and what comes next is written."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.api.grpc.produce import Receipt, _Sending
from headrace.client.aio.bulk import LONG_BYTES_MIN, BulkSend
from headrace.client.aio.producer import ANY_PARTITION, NOW, AsyncProducer, RecordMetadata
from headrace.client.aio.producer_pool import Acks, PublisherSettings
from headrace.client.aio.request_batcher import RequestBatcher
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError
from headrace.rpc import headrace_pb2 as pb
from headrace.testing import LocalBroker
from tests.integration.fatal_errors import raise_fatal_error

PATIENCE_S = 60.0
_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
async def publisher(broker: LocalBroker) -> AsyncIterator[AsyncProducer]:
    publisher = AsyncProducer(broker.bootstrap, PublisherSettings())
    yield publisher
    await publisher.close()


@pytest.fixture
def topic(broker: LocalBroker) -> str:
    name = f"fatal-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_S)
    return name


def break_producer(publisher: AsyncProducer) -> Producer:
    broken = publisher._producers.get(None)
    raise_fatal_error(broken)
    return broken


async def written(broker: LocalBroker, topic: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "t", "enable.auto.commit": False})
    try:
        _, end = await asyncio.to_thread(consumer.get_watermark_offsets, TopicPartition(topic, 0), PATIENCE_S)
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [one.value() for one in await asyncio.to_thread(consumer.consume, end, PATIENCE_S)] if end else []
    finally:
        consumer.close()


async def outcomes(*futures: asyncio.Future[RecordMetadata]) -> list[Any]:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*futures, return_exceptions=True)


async def test_messages_that_wait_are_answered_and_the_next_is_written(broker, publisher, topic):
    await publisher.send(topic, b"before")
    waiting = [publisher.send(topic, b"waits") for _ in range(3)]
    broken = break_producer(publisher)
    answered = await outcomes(*waiting)
    (place,) = await outcomes(publisher.send(topic, b"after"))
    values = await written(broker, topic)
    assert values[place.offset] == b"after"
    failed = [one for one in answered if isinstance(one, UnknownOutcomeError | KafkaApiError)]
    sent = [one for one in answered if one not in failed]  # the broker may be faster than the failure
    assert [values[one.offset] for one in sent] == [b"waits"] * len(sent)
    assert broken not in publisher._producers.all(), "it has reported everything"


async def test_a_fatal_error_while_idle_costs_no_message(broker, publisher, topic):
    await publisher.send(topic, b"before")
    break_producer(publisher)
    await publisher.send(topic, b"one")
    break_producer(publisher)
    singles = RequestBatcher(publisher, linger_ms=0)
    await singles.send(topic, (b"two", None, ANY_PARTITION, NOW, [("h", b"1")]), Acks.ALL)
    break_producer(publisher)
    upload = BulkSend(publisher)
    await upload.push(topic, [{"value": "three"}, {"value": "four"}])
    await upload.finish()
    assert upload.acked == 2
    break_producer(publisher)
    receipt = Receipt(1)
    _Sending(publisher, topic, ANY_PARTITION, None, receipt).queue([pb.Record(value=b"five")])
    await receipt.complete()
    assert receipt.written == 1
    assert await written(broker, topic) == [b"before", b"one", b"two", b"three", b"four", b"five"]


async def test_an_upload_on_a_broken_producer_counts_its_records(broker, publisher, topic):
    upload = BulkSend(publisher)
    await upload.push(topic, [{"value": "a"}] * 10)
    break_producer(publisher)
    await upload.push(topic, [{"value": "b"}])
    await upload.finish()
    values = await written(broker, topic)
    assert (len(values), values[-1]) == (upload.acked, b"b")
    assert upload.acked + upload.failed == 11


async def push_until_it_fails(upload: BulkSend, topic: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await upload.push(topic, [{"value": "b"}])
            await asyncio.sleep(0)


async def test_a_long_upload_ends_with_its_fatal_error_and_counts(broker, publisher, topic):
    upload = BulkSend(publisher, bytes_announced=LONG_BYTES_MIN)
    await upload.push(topic, [{"value": "a"}] * 10)
    raise_fatal_error(upload._stream)
    with pytest.raises((UnknownOutcomeError, KafkaApiError)):
        await push_until_it_fails(upload, topic)
    await upload.finish()
    await upload.close()
    assert upload.acked == len(await written(broker, topic))


async def test_a_report_that_raises_holds_up_nothing_else(broker, publisher, topic):
    class Broken:
        def delivered(self, error: object, message: object, /) -> None:
            publisher.delivery_done()
            raise RuntimeError("a bug in a recipient")

    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    publisher.send_with_listener(topic, (b"1", None, ANY_PARTITION, NOW, None), Broken())
    (place,) = await outcomes(publisher.send(topic, b"2"))
    (later,) = await outcomes(publisher.send(topic, b"3"))
    assert (place.offset, later.offset) == (1, 2)
    assert [str(one) for one in raised] == ["a bug in a recipient"]


async def test_a_publisher_with_a_fatal_error_closes(broker, topic):
    publisher = AsyncProducer(broker.bootstrap, PublisherSettings())
    await publisher.send(topic, b"1")
    break_producer(publisher)
    await publisher.close()
