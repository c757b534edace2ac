"""Adaptive batching of single-message produce calls.

Under low load, calls are sent at once. Under high load, a call waits briefly for others, and the results are
delivered a few per event-loop iteration. Without this the callers would synchronize: a burst of requests, then a
burst of responses, and no processor time for other work for milliseconds. docs/adr/0023 has the measurements.
"""

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING

from headrace.client.aio.producer import AsyncProducer, ProducerRecord, RecordMetadata, place_of
from headrace.client.aio.producer_pool import Acks

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

# Messages per window from which on the load is high. At that rate, 6,400 per second, batching saves the broker more
# requests than it costs a caller latency; below it, too few calls would share a batch.
HIGH_LOAD_MESSAGES = 32
HIGH_LOAD_WINDOW_S = 0.005
# Under high load, messages are collected until this share of all pending callers has joined, but at least GATHERED_MIN,
# and for at most this many lingers; then librdkafka lingers once more. A batch of so few costs the broker hardly more
# than one message. Not all callers: the rest arrive during that time, and waiting for the last one would gain nothing.
GATHERED_SHARE = 0.75
GATHERED_MIN = 16
GATHERED_LINGERS = 3
# With a linger above a few milliseconds, waiting longer adds no callers.
GATHER_S_MAX = 0.010
# Results per event-loop iteration. One per iteration costs a sixth of the throughput; all at once is a burst again.
RESPONSES_PER_ITERATION = 6


class LoadDetector:
    """Detects high load from the number of messages per window."""

    def __init__(self) -> None:
        self._seen, self._window_ends_s, self._is_large = 0, 0.0, False

    def joined(self, now_s: float) -> bool:
        """Counts a message; returns whether the previous window was full and has only just ended."""
        if now_s >= self._window_ends_s:
            just_ended = now_s < self._window_ends_s + HIGH_LOAD_WINDOW_S
            self._is_large = just_ended and self._seen >= HIGH_LOAD_MESSAGES
            self._seen, self._window_ends_s = 0, now_s + HIGH_LOAD_WINDOW_S
        self._seen += 1
        return self._is_large


class RequestBatcher:
    def __init__(self, publisher: AsyncProducer, linger_ms: float) -> None:
        self._publisher = publisher
        self._gather_s = min(linger_ms / 1000 * GATHERED_LINGERS, GATHER_S_MAX)
        self._loop = asyncio.get_running_loop()
        self._crowd = LoadDetector()
        self._gathered: list[_Caller] = []
        self._waiting = 0  # callers without a result
        self._timer: asyncio.TimerHandle | None = None  # when the collected messages are sent
        # results that have not been delivered yet
        self._answers: deque[tuple[asyncio.Future[RecordMetadata], Message]] = deque()

    def send(self, topic: str, message: ProducerRecord, acks: Acks | None = None) -> "asyncio.Future[RecordMetadata]":
        """Sends a message; the future gets its RecordMetadata or the exception that `AsyncProducer.send` documents."""
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        caller = _Caller(self, future, topic, message, acks)
        self._waiting += 1
        is_crowded = self._gather_s > 0 and self._crowd.joined(self._loop.time())
        if self._gathered or is_crowded:
            self._gather(caller)  # also after the load has dropped: messages keep their order
        else:
            self._send(caller)
        if is_crowded:
            # Lets other processes on this core run now, not only after all calls have been served.
            os.sched_yield()
        return future

    def _gather(self, caller: "_Caller") -> None:
        self._gathered.append(caller)
        if len(self._gathered) == 1:
            self._timer = self._loop.call_later(self._gather_s, self._send_gathered)
        elif len(self._gathered) >= max(GATHERED_MIN, self._waiting * GATHERED_SHARE):
            assert self._timer is not None, "the first one has set it"
            self._timer.cancel()
            self._send_gathered()

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for caller in gathered:
            self._send(caller)

    def _send(self, caller: "_Caller") -> None:
        try:
            self._publisher.send_with_listener(caller.topic, caller.message, caller, caller.acks)
        except Exception as error:  # the call may have returned already: every error goes to the future
            self._fail(caller, error)

    def delivered(self, caller: "_Caller", error: "KafkaError | None", message: "Message") -> None:
        self._publisher.delivery_done()
        if error is not None:
            self._fail(caller, self._publisher.failure(caller.topic, error))
            return
        if not self._answers:
            self._loop.call_soon(self._answer_some)
        self._answers.append((caller.future, message))

    def _fail(self, caller: "_Caller", error: Exception) -> None:
        self._waiting -= 1
        if not caller.future.done():
            caller.future.set_exception(error)

    def _answer_some(self) -> None:
        for _ in range(min(RESPONSES_PER_ITERATION, len(self._answers))):
            future, message = self._answers.popleft()
            self._waiting -= 1
            if not future.done():  # cancelled by its caller otherwise
                future.set_result(place_of(message))
        if self._answers:
            self._loop.call_soon(self._answer_some)
            os.sched_yield()


class _Caller:
    """One message and the future of its caller."""

    __slots__ = ("_singles", "acks", "future", "message", "topic")

    def __init__(
        self,
        singles: RequestBatcher,
        future: "asyncio.Future[RecordMetadata]",
        topic: str,
        message: ProducerRecord,
        acks: Acks | None,
    ) -> None:
        self._singles, self.future = singles, future
        self.topic, self.message, self.acks = topic, message, acks

    def delivered(self, error: "KafkaError | None", message: "Message", /) -> None:
        self._singles.delivered(self, error, message)
