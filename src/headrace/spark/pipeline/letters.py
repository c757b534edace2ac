"""Dead letters as values: what one says of itself, and which of them were sent again. Pure.

A dead letter is the record as it was, with notes behind its own headers (`plan.py` writes them). Which letters were
sent again stands in a topic beside theirs: every record of it names ranges of offsets, by partition.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.model.ids import TopicPartition
from headrace.records.record import Headers, Record

DEAD_ERROR = "headrace.error"
DEAD_PIPELINE = "headrace.pipeline"
DEAD_TOPIC = "headrace.topic"
DEAD_PARTITION = "headrace.partition"
DEAD_OFFSET = "headrace.offset"
DEAD_TIMESTAMP = "headrace.timestamp"
DEAD_SOURCE = "headrace.source"  # before the others: which source of the pipeline the record does not fit
DEAD_LETTER = "headrace.letter"  # of a record in the retry topic: partition:offset of its letter, behind the others
KEPT = {"retention.ms": "-1"}  # of topics that hold the only copy of something
# In this order, behind the record's own.
DEAD_HEADERS = (DEAD_ERROR, DEAD_PIPELINE, DEAD_TOPIC, DEAD_PARTITION, DEAD_OFFSET, DEAD_TIMESTAMP)


class Letter(NamedTuple):
    place: TopicPartition  # of the letter itself
    offset: int
    pipeline: str
    error: str
    source: TopicPartition  # where the record lay
    source_offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers  # the record's own
    reader: str = (
        ""  # the source of the pipeline that the record did not fit; letters of earlier versions do not say it
    )

    def to_retry(self, topic: str) -> "Letter":
        """The same for the retry topic: with the notes behind the record's own headers, and its letter's place."""
        said = (self.error, self.pipeline, self.source.topic, self.source.partition, self.source_offset, self.timestamp)
        notes = [(name, str(text).encode()) for name, text in zip(DEAD_HEADERS, said, strict=True)]
        letter = (DEAD_LETTER, f"{self.place.partition}:{self.offset}".encode())
        reader = [(DEAD_SOURCE, self.reader.encode())] if self.reader else []
        return self._replace(source=TopicPartition(topic, 0), headers=(*self.headers, *reader, *notes, letter))


def letter_of(place: TopicPartition, record: Record) -> Letter | None:
    """None if the record is no letter of a pipeline: somebody else wrote it there."""
    own, notes = record.headers[: -len(DEAD_HEADERS)], record.headers[-len(DEAD_HEADERS) :]
    if tuple(name for name, _ in notes) != DEAD_HEADERS:
        return None
    error, pipeline, topic, partition, offset, timestamp = (
        (value or b"").decode(errors="replace") for _, value in notes
    )
    try:
        source, source_offset, time = TopicPartition(topic, int(partition)), int(offset), int(timestamp)
    except ValueError:
        return None
    reader = ""
    if own and own[-1][0] == DEAD_SOURCE:
        own, reader = own[:-1], (own[-1][1] or b"").decode(errors="replace")
    return Letter(
        place, record.offset, pipeline, error, source, source_offset, time, record.key, record.value, own, reader
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which letters are meant: of one pipeline, and of those perhaps only some."""

    pipeline: str
    error: str | None = None  # a piece of the error's text, in either case
    limit: int | None = None

    def of(self, letters: Iterable[Letter], done: "Retried") -> Iterator[Letter]:
        left = self.limit if self.limit is not None else -1
        for letter in letters:
            if left == 0:
                return
            if letter.pipeline == self.pipeline and self._error_fits(letter) and letter not in done:
                left -= 1
                yield letter

    def _error_fits(self, letter: Letter) -> bool:
        return self.error is None or self.error.lower() in letter.error.lower()


@dataclass
class Retried:
    """Letters that were sent again."""

    offsets: dict[int, set[int]] = field(default_factory=dict)

    def __contains__(self, letter: Letter) -> bool:
        return letter.offset in self.offsets.get(letter.place.partition, ())

    def learn(self, entry: bytes | None) -> None:
        for partition, ranges in json.loads(entry or b"{}").get("letters", {}).items():
            known = self.offsets.setdefault(int(partition), set())
            for first, last in ranges:
                known.update(range(first, last + 1))


def entry_of(letters: Iterable[Letter], pipeline: str, at_ms: int) -> bytes:
    """What is remembered of a handful of letters."""
    by_partition: dict[int, list[int]] = {}
    for letter in letters:
        by_partition.setdefault(letter.place.partition, []).append(letter.offset)
    ranges = {str(partition): _ranges(sorted(offsets)) for partition, offsets in sorted(by_partition.items())}
    return json.dumps({"letters": ranges, "pipeline": pipeline, "at_ms": at_ms}).encode()


def _ranges(offsets: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return found


def homeless(letters: Iterable[Letter], partitions: Mapping[str, Iterable[int]]) -> list[Letter]:
    """Those whose topic or partition is not there any more."""
    return [one for one in letters if one.source.partition not in set(partitions.get(one.source.topic, ()))]
