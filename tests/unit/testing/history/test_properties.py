"""Random histories of an honest queue pass; the same histories with one lie in them do not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing.history import (
    Anomaly,
    Assign,
    Begin,
    Crash,
    Ended,
    Ending,
    Event,
    NotSent,
    Poll,
    Seen,
    Send,
    Sent,
    Subscribe,
    TopicPartition,
    check,
)

PLACES = (TopicPartition("t", 0), TopicPartition("t", 1))
CLIENTS = ("a", "b", "c")
FAR = 10_000  # an offset behind everything that is written


@dataclass
class HonestQueue:
    """Logs that do what they promise, and clients that do anything."""

    random: Random
    events: list[Event] = field(default_factory=list)
    logs: dict[TopicPartition, list[int | None]] = field(default_factory=lambda: {place: [] for place in PLACES})
    visible: set[int] = field(default_factory=set)
    next_value: int = 100
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLIENTS, 0))

    def name(self, client: str) -> str:
        return f"{client}{self.lives[client]}"

    def crash(self, client: str) -> None:
        self.events.append(Crash(self.name(client)))
        self.lives[client] += 1

    def append(self, place: TopicPartition, value: int | None) -> int:
        self.logs[place].append(value)
        return len(self.logs[place]) - 1

    def send(self, client: str) -> int:
        """One value, with a luck of its own; returns it."""
        place, value = self.random.choice(PLACES), self.next_value
        self.next_value += 1
        self.events.append(Send(self.name(client), place, value))
        luck = self.random.random()
        if luck < 0.7:
            self.events.append(Sent(self.name(client), value, self.append(place, value)))
        elif luck < 0.8:
            self.append(place, value)  # written, and the answer never came
        elif luck < 0.9:
            self.events.append(NotSent(self.name(client), value))
        return value

    def plain_send(self, client: str) -> None:
        self.visible.add(self.send(client))

    def transaction(self, client: str) -> None:
        name = self.name(client)
        self.events.append(Begin(name))
        values = [self.send(client) for _ in range(self.random.randrange(4))]
        refused = {event.value for event in self.events if isinstance(event, NotSent)}
        written = {value for log in self.logs.values() for value in log}
        can_commit = not refused & set(values) and written >= set(values)
        ending = self.random.choice(["commit", "abort", "crash", "crash while committing"])
        if ending == "commit" and can_commit:
            self.events += [Ending(name, True), Ended(name, True)]
            self.visible.update(values)
        elif ending == "crash while committing" and can_commit:
            self.events.append(Ending(name, True))
            if self.random.random() < 0.5:
                self.visible.update(values)
            self.crash(client)
        elif ending == "abort":
            self.events += [Ending(name, False), Ended(name, False)]
        else:
            self.crash(client)
        for place in PLACES:
            self.append(place, None)  # markers take an offset each

    def everything(self, place: TopicPartition, start: int = 0) -> list[Seen]:
        rows = [Seen(place, offset, value) for offset, value in enumerate(self.logs[place]) if value in self.visible]
        return [seen for seen in rows if seen.offset >= start]

    def read(self, reader: str) -> None:
        name, place = f"reader-{reader}-{len(self.events)}", self.random.choice(PLACES)
        found = self.everything(place, self.random.randrange(len(self.logs[place]) + 1))
        if self.random.random() < 0.5:
            self.events.append(Subscribe(name, ("t",)))
            self.random.shuffle(found)
        else:
            self.events.append(Assign(name, (place,)))
        middle = self.random.randrange(len(found) + 1)
        self.events += [Poll(name, tuple(part)) for part in (found[:middle], found[middle:]) if part]


def honest(seed: int, steps: int) -> HonestQueue:
    queue = HonestQueue(Random(seed))
    for _ in range(steps):
        step = queue.random.choice([queue.plain_send, queue.plain_send, queue.transaction, queue.crash, queue.read])
        step(queue.random.choice(CLIENTS))
    return queue


def last_reads(*told: list[Seen]) -> list[Event]:
    return [Assign("last", PLACES), *(Poll("last", tuple(records)) for records in told)]


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 60))
def test_an_honest_queue_is_never_accused(seed: int, steps: int):
    queue = honest(seed, steps)
    assert check([*queue.events, *last_reads(*map(queue.everything, PLACES))]) == []


# One lie at a time. Each is given what the last reader finds in a partition, and returns what it says instead.


def acknowledged(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    """Those whose producer was told where they are, outside any transaction."""
    values = {event.value for event in queue.events if isinstance(event, Sent) and event.client == "y"}
    return [seen for seen in found if seen.value in values]


def without_one(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    """A value that was acknowledged outside any transaction is forgotten: its fate is known."""
    victim = queue.random.choice(acknowledged(queue, found))
    for index, event in enumerate(queue.events):
        if isinstance(event, Poll):
            queue.events[index] = Poll(event.client, tuple(seen for seen in event.records if seen != victim))
    return [seen for seen in found if seen != victim]


def with_one_twice(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    return [*found, queue.random.choice(found)._replace(offset=FAR)]


def with_an_exchange(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    """Two values change places, one of which was acknowledged: of two others, any order may be the true one."""
    first = queue.random.choice(acknowledged(queue, found))
    second = queue.random.choice([seen for seen in found if seen != first])
    changed = {first: first._replace(value=second.value), second: second._replace(value=first.value)}
    return [changed.get(seen, seen) for seen in found]


def with_a_step_back(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    return [*found, queue.random.choice(found)]


def with_a_hole(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    """Another reader sees everything; this one passes over what is not at its beginning or end."""
    queue.events.append(Poll("witness", tuple(found)))
    hole = queue.random.randrange(1, len(found) - 1)
    return [*found[:hole], *found[hole + 1 :]]


def with_something_invented(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    return [*found, Seen(PLACES[0], FAR, 7)]


def with_something_aborted(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    queue.events += [Begin("z"), Send("z", PLACES[0], 7), Ending("z", False), Ended("z", False)]
    return [*found, Seen(PLACES[0], FAR, 7)]


def with_half_a_transaction(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    queue.events += [Begin("z"), Send("z", PLACES[0], 7), Send("z", PLACES[1], 8), Ending("z", True), Crash("z")]
    return [*found, Seen(PLACES[0], FAR, 7)]


def with_a_reversal(queue: HonestQueue, found: list[Seen]) -> list[Seen]:
    queue.events += [Send("z", PLACES[0], 7), Send("z", PLACES[0], 8)]
    return [*found, Seen(PLACES[0], FAR, 8), Seen(PLACES[0], FAR + 1, 7)]


LIES = {
    without_one: {Anomaly.LOST, Anomaly.UNSEEN, Anomaly.TORN},
    with_one_twice: {Anomaly.DUPLICATE},
    with_an_exchange: {Anomaly.DUPLICATE, Anomaly.INCONSISTENT_OFFSET, Anomaly.NONMONOTONIC_SEND},
    with_a_step_back: {Anomaly.NONMONOTONIC_POLL},
    with_a_hole: {Anomaly.SKIPPED_POLL},
    with_something_invented: {Anomaly.STRANGER},
    with_something_aborted: {Anomaly.ABORTED_READ},
    with_half_a_transaction: {Anomaly.TORN},
    with_a_reversal: {Anomaly.NONMONOTONIC_SEND},
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@given(seed=st.integers(0, 2**32))
def test_every_lie_is_found(lie: Callable[[HonestQueue, list[Seen]], list[Seen]], seed: int):
    queue = honest(seed, 60)
    for value in range(4):  # so that there is something to lie about, whatever the seed
        queue.events += [Send("y", PLACES[0], value), Sent("y", value, queue.append(PLACES[0], value))]
        queue.visible.add(value)
    told = lie(queue, queue.everything(PLACES[0]))
    problems = check([*queue.events, *last_reads(told, queue.everything(PLACES[1]))])
    assert LIES[lie] & {problem.anomaly for problem in problems}
