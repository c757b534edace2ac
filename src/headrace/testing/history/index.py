"""Index of a history for the checks: what was written, in which transaction, and where it was read."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.model.ids import TopicPartition
from headrace.testing.history.events import (
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
)


@dataclass(slots=True)
class Transaction:
    client: str
    values: list[int] = field(default_factory=list)
    was_to_commit: bool = False
    committed: bool | None = None  # None: the client got no result


@dataclass(slots=True)
class Write:
    client: str
    place: TopicPartition
    value: int
    transaction: Transaction | None
    is_acknowledged: bool = False
    is_refused: bool = False
    offset: int | None = None  # as acknowledged

    @property
    def must_be_seen(self) -> bool:
        if self.is_refused:
            return False
        return self.is_acknowledged if self.transaction is None else self.transaction.committed is True

    @property
    def must_not_be_seen(self) -> bool:
        if self.transaction is None:
            return self.is_refused
        # A transaction that was not committed is aborted eventually, by its client or by its timeout.
        return self.is_refused or self.transaction.committed is False or not self.transaction.was_to_commit


@dataclass(slots=True)
class Digest:
    writes: dict[int, Write] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    sends: dict[tuple[str, TopicPartition], list[int]] = field(default_factory=lambda: defaultdict(list))
    polled: set[Seen] = field(default_factory=set)
    ends: dict[TopicPartition, int] = field(default_factory=dict)  # the highest offset that any consumer read
    values_at: dict[tuple[TopicPartition, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    places_of: dict[int, set[tuple[TopicPartition, int]]] = field(default_factory=lambda: defaultdict(set))

    def was_polled(self, value: int) -> bool:
        return any(Seen(*where, value) in self.polled for where in self.places_of.get(value, ()))

    def offset_of(self, value: int) -> int | None:
        return min((offset for _, offset in self.places_of.get(value, ())), default=None)


def digest(events: Iterable[Event]) -> Digest:
    found = Digest()
    open_ones: dict[str, Transaction] = {}
    for event in events:
        match event:
            case Send():
                _add_send(found, event, open_ones.get(event.client))
            case Sent(_, value, offset):
                write = _write(found, value)
                write.is_acknowledged, write.offset = True, offset
                if offset is not None:
                    _add_place(found, Seen(write.place, offset, value))
            case NotSent(_, value):
                _write(found, value).is_refused = True
            case Poll(_, records):
                for seen in records:
                    found.polled.add(seen)
                    found.ends[seen.place] = max(seen.offset, found.ends.get(seen.place, -1))
                    _add_place(found, seen)
            case Begin(client):
                open_ones[client] = Transaction(client)
                found.transactions.append(open_ones[client])
            case Ending(client, commits):
                _open(open_ones, client).was_to_commit |= commits
            case Ended(client, committed):
                _open(open_ones, client).committed = committed
                del open_ones[client]
            case Crash(client):
                open_ones.pop(client, None)
    return found


def _add_send(found: Digest, event: Send, transaction: Transaction | None) -> None:
    if event.value in found.writes:
        raise ValueError(f"value {event.value} is sent twice, by {found.writes[event.value].client} and {event.client}")
    found.writes[event.value] = Write(event.client, event.place, event.value, transaction)
    found.sends[(event.client, event.place)].append(event.value)
    if transaction is not None:
        transaction.values.append(event.value)


def _add_place(found: Digest, seen: Seen) -> None:
    found.values_at[(seen.place, seen.offset)].add(seen.value)
    found.places_of[seen.value].add((seen.place, seen.offset))


def _write(found: Digest, value: int) -> Write:
    if value not in found.writes:
        raise ValueError(f"value {value} has an outcome before it was sent")
    return found.writes[value]


def _open(open_ones: dict[str, Transaction], client: str) -> Transaction:
    if client not in open_ones:
        raise ValueError(f"{client} ends a transaction that it did not begin")
    return open_ones[client]
