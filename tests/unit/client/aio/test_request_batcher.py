"""Who waits for whom among single messages, and in what order they are sent and answered."""

import asyncio

import pytest

from headrace.client.aio.producer import ANY_PARTITION, NOW, RecordMetadata
from headrace.client.aio.request_batcher import (
    GATHER_S_MAX,
    GATHERED_LINGERS,
    GATHERED_MIN,
    GATHERED_SHARE,
    HIGH_LOAD_MESSAGES,
    HIGH_LOAD_WINDOW_S,
    RESPONSES_PER_ITERATION,
    LoadDetector,
    RequestBatcher,
)
from headrace.client.aio.transport import OverloadedError

LINGER_MS = 1


class Delivered:
    """What librdkafka tells of a message that has arrived."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000


class Sent:
    """A publisher that remembers what it was given, and says what became of it when the test wants it to."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.reports = []
        self.done = 0
        self.is_full = False

    def send_with_listener(self, topic, message, report, acks):
        if self.is_full:
            raise OverloadedError("too many messages wait for the broker")
        self.values.append(message[0])
        self.reports.append(report)

    def delivery_done(self):
        self.done += 1

    def deliver_all(self) -> None:
        for offset, report in enumerate(self.reports):
            report.delivered(None, Delivered(offset))
        self.reports.clear()


class Timer:
    def __init__(self, at_s: float, call) -> None:
        self.at_s, self.call, self.is_cancelled = at_s, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Timers:
    """The loop's timers and clock, in the test's hands."""

    def __init__(self, monkeypatch, loop) -> None:
        self.now_s = 100.0
        self.due = []
        monkeypatch.setattr(loop, "time", lambda: self.now_s)
        monkeypatch.setattr(loop, "call_later", self.call_later)

    def call_later(self, delay_s, call):
        timer = Timer(self.now_s + delay_s, call)
        self.due.append(timer)
        return timer

    def move_on(self, seconds: float) -> None:
        self.now_s += seconds
        due, self.due = self.due, []
        for timer in due:
            if timer.at_s > self.now_s:
                self.due.append(timer)
            elif not timer.is_cancelled:
                timer.call()


def message(value: bytes):
    return value, None, ANY_PARTITION, NOW, None


@pytest.fixture
async def timers(monkeypatch):
    return Timers(monkeypatch, asyncio.get_running_loop())


@pytest.fixture
async def sent():
    return Sent()


@pytest.fixture
async def singles(sent, timers):
    return RequestBatcher(sent, LINGER_MS)


def crowd_in(singles, timers) -> list[asyncio.Future]:
    """As many at once as make a crowd; the next one belongs to it."""
    futures = [singles.send("t", message(b"early")) for _ in range(HIGH_LOAD_MESSAGES)]
    timers.now_s += HIGH_LOAD_WINDOW_S
    return futures


def test_a_crowd_is_many_within_a_window():
    crowd = LoadDetector()
    assert [crowd.joined(1.0) for _ in range(HIGH_LOAD_MESSAGES)] == [False] * HIGH_LOAD_MESSAGES
    assert crowd.joined(1.0 + HIGH_LOAD_WINDOW_S)


def test_a_few_are_no_crowd():
    crowd = LoadDetector()
    for _ in range(HIGH_LOAD_MESSAGES - 1):
        crowd.joined(1.0)
    assert not crowd.joined(1.0 + HIGH_LOAD_WINDOW_S)


def test_a_crowd_that_has_gone_is_forgotten():
    crowd = LoadDetector()
    for _ in range(HIGH_LOAD_MESSAGES):
        crowd.joined(1.0)
    assert not crowd.joined(1.0 + 2 * HIGH_LOAD_WINDOW_S)


async def test_whoever_comes_alone_is_sent_at_once(singles, sent):
    singles.send("t", message(b"a"))
    assert sent.values == [b"a"]


async def test_in_a_crowd_a_message_waits_for_others_and_keeps_its_place(singles, sent, timers):
    crowd_in(singles, timers)
    singles.send("t", message(b"a"))
    singles.send("t", message(b"b"))
    assert sent.values[HIGH_LOAD_MESSAGES:] == []
    timers.move_on(GATHERED_LINGERS * LINGER_MS / 1000)
    assert sent.values[HIGH_LOAD_MESSAGES:] == [b"a", b"b"]


async def test_enough_of_them_wait_no_longer(singles, sent, timers):
    early = crowd_in(singles, timers)
    sent.deliver_all()
    await asyncio.gather(*early)
    values = [b"%d" % number for number in range(GATHERED_MIN)]
    for value in values:
        singles.send("t", message(value))
    assert sent.values[HIGH_LOAD_MESSAGES:] == values, "nobody else waits"
    singles.send("t", message(b"next"))
    timers.move_on(GATHERED_LINGERS * LINGER_MS / 1000)
    assert sent.values[HIGH_LOAD_MESSAGES:] == [*values, b"next"], "each once"


async def test_the_more_callers_wait_the_more_are_gathered(singles, sent, timers):
    crowd_in(singles, timers)
    for _ in range(GATHERED_MIN):
        singles.send("t", message(b"a"))
    assert len(sent.values) == HIGH_LOAD_MESSAGES
    more = 0
    while len(sent.values) == HIGH_LOAD_MESSAGES:
        singles.send("t", message(b"a"))
        more += 1
    together = GATHERED_MIN + more
    assert together == GATHERED_SHARE * (HIGH_LOAD_MESSAGES + together)


async def test_a_late_message_does_not_overtake_those_that_are_gathered(singles, sent, timers):
    crowd_in(singles, timers)
    singles.send("t", message(b"a"))
    timers.now_s += 3 * HIGH_LOAD_WINDOW_S  # the crowd has gone, and the timer is late
    singles.send("t", message(b"b"))
    assert sent.values[HIGH_LOAD_MESSAGES:] == []
    timers.move_on(0)
    assert sent.values[HIGH_LOAD_MESSAGES:] == [b"a", b"b"]


async def test_a_long_linger_is_not_made_much_longer(sent, timers):
    singles = RequestBatcher(sent, 1000)
    crowd_in(singles, timers)
    singles.send("t", message(b"a"))
    timers.move_on(GATHER_S_MAX)
    assert sent.values[-1] == b"a"


async def test_without_a_linger_nobody_waits(sent, timers):
    singles = RequestBatcher(sent, 0)
    crowd_in(singles, timers)
    singles.send("t", message(b"a"))
    assert sent.values[-1] == b"a"


async def test_answers_leave_a_few_in_each_turn(singles, sent):
    futures = [singles.send("t", message(b"a")) for _ in range(HIGH_LOAD_MESSAGES)]
    sent.deliver_all()
    answered = []
    while not all(one.done() for one in futures):
        await asyncio.sleep(0)
        answered.append(sum(one.done() for one in futures))
    assert answered[0] == RESPONSES_PER_ITERATION
    assert answered[-2] == HIGH_LOAD_MESSAGES - HIGH_LOAD_MESSAGES % RESPONSES_PER_ITERATION
    assert [one.result() for one in futures] == [
        RecordMetadata(0, offset, 1000) for offset in range(HIGH_LOAD_MESSAGES)
    ]
    assert sent.done == HIGH_LOAD_MESSAGES


async def test_a_caller_who_has_gone_holds_nobody_up(singles, sent):
    gone, stays = (singles.send("t", message(value)) for value in (b"a", b"b"))
    gone.cancel()
    sent.deliver_all()
    assert (await stays).offset == 1


@pytest.mark.parametrize("is_gathered", [False, True])
async def test_no_room_is_told_by_the_future(singles, sent, timers, is_gathered):
    if is_gathered:
        crowd_in(singles, timers)
    sent.is_full = True
    future = singles.send("t", message(b"a"))
    timers.move_on(1)
    with pytest.raises(OverloadedError):
        await future


async def test_other_processes_are_let_in_only_where_many_come(singles, sent, timers, monkeypatch):
    yields = []
    monkeypatch.setattr("os.sched_yield", lambda: yields.append(1))
    singles.send("t", message(b"a"))
    sent.deliver_all()
    await asyncio.sleep(0)
    assert not yields
    crowd_in(singles, timers)
    singles.send("t", message(b"b"))
    assert yields
