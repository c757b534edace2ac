"""Single messages of many callers: sent together and answered one after the other, so that nobody else has to wait.

Callers who come alone are sent on at once. When many come, each waits a little for the others, and the answers leave
a few at a time. Left to themselves the callers would fall into step: a burst of requests, a burst of answers, and a
processor that is free for nobody else for milliseconds. docs/adr/0023 has what was measured.
"""

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING

from headrace.client.aio.producer import AsyncProducer, ProducerRecord, RecordMetadata, place_of
from headrace.client.aio.producer_pool import Acks

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

# As many as this within a window are many. At that rate, 6,400 a second, waiting for others saves the broker more
# requests than it costs a caller time; below it there are too few to wait for.
HIGH_LOAD_MESSAGES = 32
HIGH_LOAD_WINDOW_S = 0.005
# While many come, messages are gathered until this share of all callers is in, but no fewer than that many, and for
# this many lingers at most; then librdkafka lingers once more. A batch of so few costs the broker hardly more than one
# message. Not all: the rest come meanwhile, and whoever waited for the last one would wait for nothing.
GATHERED_SHARE = 0.75
GATHERED_MIN = 16
GATHERED_LINGERS = 3
# Whoever lingers for longer than a few milliseconds has all the company there is.
GATHER_S_MAX = 0.010
# Answers that leave in one turn of the loop. One by one costs a sixth of the requests; all at once is a burst again.
RESPONSES_PER_ITERATION = 6


class LoadDetector:
    """Tells whether many come at once."""

    def __init__(self) -> None:
        self._seen, self._window_ends_s, self._is_large = 0, 0.0, False

    def joined(self, now_s: float) -> bool:
        """Somebody has come: whether the last window was a full one, and has only just ended."""
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
        self._waiting = 0  # callers without an answer
        self._timer: asyncio.TimerHandle | None = None  # at which those who are gathered go
        self._answers: deque[tuple[asyncio.Future[RecordMetadata], Message]] = deque()  # that nobody has heard of yet

    def send(self, topic: str, message: ProducerRecord, acks: Acks | None = None) -> "asyncio.Future[RecordMetadata]":
        """The future ends with the place, a Refused, an Unanswered or a OverloadedError."""
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        caller = _Caller(self, future, topic, message, acks)
        self._waiting += 1
        is_crowded = self._gather_s > 0 and self._crowd.joined(self._loop.time())
        if self._gathered or is_crowded:
            self._gather(caller)  # also when the crowd has gone: messages keep their order
        else:
            self._send(caller)
        if is_crowded:
            # Whoever else needs this processor has it now, not when the whole crowd has been served.
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
        except Exception as error:  # the call may be over: whatever it is reaches its caller by the future
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
            if not future.done():  # else whoever waited has gone
                future.set_result(place_of(message))
        if self._answers:
            self._loop.call_soon(self._answer_some)
            os.sched_yield()


class _Caller:
    """One message, and whoever waits for what becomes of it."""

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
