"""History checker: every anomaly in a history of client operations.

The checked guarantees are those of acks=all, idempotent producers and `read_committed` consumers, on topics without
retention: an acknowledged record is read, once, at its acknowledged offset, in the order in which it was sent; a
rejected or aborted record is never read; a transaction is read as a whole. The anomalies are those of Jepsen's
workload for Kafka.

Pure function of the events: no client, no clock.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from headrace.model.ids import TopicPartition
from headrace.testing.history.events import Assign, Crash, Event, Poll, Seen, Subscribe
from headrace.testing.history.index import Digest, digest


class Anomaly(StrEnum):
    INCONSISTENT_OFFSET = "inconsistent offset"  # two values at one offset
    DUPLICATE = "duplicate"  # one value at two offsets
    STRANGER = "stranger"  # a value that was not sent to this partition
    ABORTED_READ = "aborted read"  # a rejected, aborted or never committed value was read
    LOST = "lost"  # acknowledged, and consumers have passed its offset without reading it
    UNSEEN = "unseen"  # acknowledged, and neither it nor any later record was read
    TORN = "torn transaction"  # partially read
    NONMONOTONIC_SEND = "non-monotonic send"  # has a lower offset than an earlier record of its client
    SKIPPED_POLL = "skipped poll"  # a consumer with assigned partitions skipped a record
    NONMONOTONIC_POLL = "non-monotonic poll"  # a consumer with assigned partitions went back


class Problem(NamedTuple):
    anomaly: Anomaly
    what: str

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.what}"


def check(events: Iterable[Event], *, is_complete: bool = True) -> list[Problem]:
    """Returns all anomalies; an empty list means that no guarantee was violated.

    A history is complete when a consumer has read everything from the beginning, after the last send has ended. Use
    `is_complete=False` for a history that continues: records that have not been read yet may still be.
    """
    events = list(events)
    found = digest(events)
    problems = [
        *_inconsistent(found),
        *_duplicates(found),
        *_strangers(found),
        *_aborted_reads(found),
        *_lost(found),
        *_nonmonotonic_sends(found),
        *_bad_polls(events, found),
    ]
    if is_complete:
        problems += [*_unseen(found), *_torn(found)]
    return problems


def _inconsistent(found: Digest) -> Iterator[Problem]:
    for (place, offset), values in found.values_at.items():
        if len(values) > 1:
            yield Problem(Anomaly.INCONSISTENT_OFFSET, f"{place} has {sorted(values)} at offset {offset}")


def _duplicates(found: Digest) -> Iterator[Problem]:
    for value, places in found.places_of.items():
        if len(places) > 1:
            where = ", ".join(f"{place}@{offset}" for place, offset in sorted(places))
            yield Problem(Anomaly.DUPLICATE, f"{value} stands at {where}")


def _strangers(found: Digest) -> Iterator[Problem]:
    for seen in sorted(found.polled):
        write = found.writes.get(seen.value)
        if write is None:
            yield Problem(Anomaly.STRANGER, f"{seen.value} at {seen.place}@{seen.offset} was not sent by any producer")
        elif write.place != seen.place:
            yield Problem(Anomaly.STRANGER, f"{seen.value} was sent to {write.place}, and read from {seen.place}")


def _aborted_reads(found: Digest) -> Iterator[Problem]:
    for write in found.writes.values():
        if write.must_not_be_seen and found.was_polled(write.value):
            why = "refused" if write.is_refused else "never committed"
            yield Problem(Anomaly.ABORTED_READ, f"{write.value} of {write.client} to {write.place} was {why}, and read")


def _lost(found: Digest) -> Iterator[Problem]:
    for write in found.writes.values():
        if write.must_be_seen and not found.was_polled(write.value) and _is_behind(found, write.place, write.offset):
            yield Problem(
                Anomaly.LOST,
                f"{write.value} of {write.client} was acknowledged at {write.place}@{write.offset} and is not there, "
                f"though readers have come to offset {found.ends[write.place]}",
            )


def _unseen(found: Digest) -> Iterator[Problem]:
    for write in found.writes.values():
        if not write.must_be_seen or found.was_polled(write.value):
            continue
        if not _is_behind(found, write.place, write.offset):
            yield Problem(
                Anomaly.UNSEEN, f"{write.value} of {write.client} to {write.place}@{write.offset} was never read"
            )


def _is_behind(found: Digest, place: TopicPartition, offset: int | None) -> bool:
    return offset is not None and offset < found.ends.get(place, -1)


def _torn(found: Digest) -> Iterator[Problem]:
    """Yields partially read transactions of unknown outcome.

    Those that were reported as committed are covered by LOST and UNSEEN.
    """
    for transaction in found.transactions:
        if transaction.committed is not None:
            continue
        sent = [value for value in transaction.values if not found.writes[value].is_refused]
        missing = [value for value in sent if not found.was_polled(value)]
        if missing and len(missing) < len(sent):
            yield Problem(Anomaly.TORN, f"of {sent} of {transaction.client}, {missing} are missing")


def _nonmonotonic_sends(found: Digest) -> Iterator[Problem]:
    for (client, place), values in found.sends.items():
        highest, at = -1, -1
        for value in values:
            offset = found.offset_of(value)
            if offset is None:
                continue
            if offset < highest:
                yield Problem(
                    Anomaly.NONMONOTONIC_SEND,
                    f"{client} sent {value} to {place} after {at}; they stand at {offset} and {highest}",
                )
            else:
                highest, at = offset, value


def _bad_polls(events: Sequence[Event], found: Digest) -> Iterator[Problem]:
    """Yields steps of consumers with assigned partitions, record by record, that go back or skip a visible record."""
    offsets = _visible_offsets(found)
    position: dict[str, dict[TopicPartition, int]] = {}  # of consumers with assigned partitions
    for event in events:
        match event:
            case Assign(client, _):
                position[client] = {}
            case Subscribe(client, _) | Crash(client):
                position.pop(client, None)
            case Poll(client, records) if client in position:
                for seen in records:
                    before = position[client].get(seen.place)
                    if before is not None:
                        yield from _bad_step(client, before, seen, offsets.get(seen.place, ()), found)
                    position[client][seen.place] = seen.offset


def _bad_step(client: str, before: int, seen: Seen, offsets: Sequence[int], found: Digest) -> Iterator[Problem]:
    if seen.offset <= before:
        yield Problem(
            Anomaly.NONMONOTONIC_POLL, f"{client} read {seen.place}@{seen.offset} after offset {before}, under assign"
        )
        return
    between = offsets[bisect_right(offsets, before) : bisect_left(offsets, seen.offset)]
    if between:
        values = sorted(value for offset in between for value in found.values_at[(seen.place, offset)])
        yield Problem(
            Anomaly.SKIPPED_POLL,
            f"{client} went from {seen.place}@{before} to {seen.offset} under assign, past {values}",
        )


def _visible_offsets(found: Digest) -> dict[TopicPartition, list[int]]:
    """Returns the offsets that every consumer must read: acknowledged, or read by another consumer."""
    visible: dict[TopicPartition, set[int]] = defaultdict(set)
    for seen in found.polled:
        visible[seen.place].add(seen.offset)
    for write in found.writes.values():
        if write.must_be_seen and write.offset is not None:
            visible[write.place].add(write.offset)
    return {place: sorted(offsets) for place, offsets in visible.items()}
