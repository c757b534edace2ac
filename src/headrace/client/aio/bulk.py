"""Bulk send: one upload of many messages, in order, limited by queue space; counts the delivery outcomes.

A short upload shares the publisher's producer, and each message reports its outcome. A long one gets a producer of
its own that reports failures only: a message that is neither in flight nor reported has been acknowledged.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.client.aio.producer import POLL_INTERVAL_S, UPLOAD_MESSAGES_MAX, AsyncProducer, ProducerRecord, translated
from headrace.client.aio.producer_pool import Acks
from headrace.client.aio.transport import OverloadedError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

# Worth three threads and the half second in which an idempotent producer gets its id.
LONG_MESSAGES_MIN = 5_000
# The same for an upload whose size is known beforehand: that half second overlaps with receiving it.
LONG_BYTES_MIN = 1024 * 1024
FAILURES_KEPT = 20


class BulkSend:
    """Counts delivery outcomes and keeps the first failures. `acked` is final after `finish`."""

    def __init__(self, publisher: AsyncProducer, acks: Acks | None = None, *, bytes_announced: int = 0) -> None:
        self._publisher, self._acks = publisher, acks
        is_long = bytes_announced >= LONG_BYTES_MIN
        self._stream: Producer | None = publisher.open_stream(acks) if is_long else None
        self._may_stream = not is_long
        self._broken: Exception | None = None  # fatal error of the stream
        self.sent = self.acked = self.failed = 0
        self.failures: list[Exception] = []

    async def push(self, topic: str, messages: list[dict[str, Any]]) -> None:
        """Queues all messages in order as queue space becomes available.

        Raises UnknownOutcomeError or KafkaApiError if no more can be sent.
        """
        if self._may_stream and self.sent >= LONG_MESSAGES_MIN:
            await self._go_alone()
        while messages:
            await self._wait_for_room()
            self._check()
            taken = self._send(topic, messages)
            self.sent += taken
            messages = self._left_out(topic, messages) if taken < len(messages) else []
            if messages:
                await self._look_again()

    async def push_one(self, topic: str, message: ProducerRecord) -> None:
        """Like `push`, for one message with headers or a timestamp."""
        while True:
            await self._wait_for_room()
            self._check()
            try:
                self._send_one(topic, message)
            except OverloadedError:
                await self._look_again()
            else:
                self.sent += 1
                return

    async def finish(self) -> None:
        """Returns when every message has an outcome. Each message has its own timeout, so this terminates."""
        while self.acked + self.failed < self.sent:
            if self._stream is None:
                await self._publisher.polled()
            elif len(self._stream):
                await self._look_again()
            else:
                self.acked = self.sent - self.failed

    async def close(self) -> None:
        """Closes the stream's producer in a thread, because stopping librdkafka's threads takes a moment."""
        if self._stream is not None:
            last_reference = [self._stream]
            self._stream = None
            self._publisher.close_stream(last_reference[0])
            await asyncio.to_thread(last_reference.clear)

    async def _go_alone(self) -> None:
        """Switches to a stream, after all messages so far have an outcome: order is not kept across two producers."""
        self._may_stream = False
        await self.finish()
        self._stream = self._publisher.open_stream(self._acks)

    def _send(self, topic: str, messages: list[dict[str, Any]]) -> int:
        if self._stream is None:
            return self._publisher.send_many(topic, messages, self, self._acks)
        try:
            taken: int = self._stream.produce_batch(topic, messages, on_delivery=self._reported)
        except BufferError:
            taken = 0
        except Exception as error:
            raise translated(error) from error
        self._poll_stream(self._stream)
        return taken

    def _send_one(self, topic: str, message: ProducerRecord) -> None:
        if self._stream is None:
            self._publisher.send_with_listener(topic, message, self, self._acks)
            return
        from confluent_kafka import KafkaException

        value, key, partition, timestamp_ms, headers = message
        try:
            more: Any = {"timestamp": timestamp_ms} | ({"headers": headers} if headers else {})
            self._stream.produce(topic, value, key, partition, self._reported, **more)
        except BufferError:
            raise OverloadedError("too many messages wait for the broker") from None
        except KafkaException as error:
            raise self._publisher.failure(topic, error.args[0]) from error
        self._poll_stream(self._stream)

    def _poll_stream(self, stream: "Producer") -> None:
        """Serves delivery reports. A fatal error is raised by the next push, after the counts have been updated."""
        try:
            stream.poll(0)
        except Exception as error:
            self._broken = translated(error)

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def _wait_for_room(self) -> None:
        if self._stream is None:
            await self._publisher.wait_for_room()
            return
        while len(self._stream) >= UPLOAD_MESSAGES_MAX:
            await self._look_again()

    async def _look_again(self) -> None:
        """Serves delivery reports and yields to other tasks."""
        if self._stream is not None:
            self._poll_stream(self._stream)
            await asyncio.sleep(POLL_INTERVAL_S)
        elif self._publisher.under_way:
            await self._publisher.polled()

    def delivered(self, error: "KafkaError | None", message: "Message") -> None:
        """Delivery report of the shared producer, which reports every message."""
        self._publisher.delivery_done()
        if error is None:
            self.acked += 1
        else:
            self._failed(message.topic() or "", error)

    def _reported(self, error: "KafkaError | None", message: "Message") -> None:
        """Delivery report of a stream, which reports failures only."""
        assert error is not None, "successes are not reported"
        self._failed(message.topic() or "", error)

    def _failed(self, topic: str, error: "KafkaError") -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(self._publisher.failure(topic, error))

    def _left_out(self, topic: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the messages that the full queue did not accept; counts those with other errors as failed."""
        if not any("_error" in message for message in messages):
            return messages  # the queue was full before the first message
        again = []
        for message in messages:
            error = message.pop("_error", None)
            if error is not None and error.code() == error._QUEUE_FULL:
                again.append(message)
            elif error is not None:
                self.sent += 1
                self._failed(topic, error)
        return again
