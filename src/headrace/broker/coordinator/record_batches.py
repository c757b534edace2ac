"""Splits the coordinator records of a divisible decision into batches that the partition accepts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.core.coordinator import CoordinatorRecord
from headrace.records.batch import HEADER_BYTES

# Upper bound of a record's size besides key and value: five varints of at most 5 bytes, a timestamp delta of at most
# 10, and the attributes. With an upper bound, each batch stays within the limit.
RECORD_OVERHEAD_BYTES_MAX = 36


def in_batches(
    facts: Sequence[Any], encode: Callable[[Any], CoordinatorRecord | None], bytes_max: int
) -> Iterator[Sequence[Any]]:
    """Yields runs of coordinator records in order. A record that exceeds the limit is a run of its own."""
    run: list[Any] = []
    size = HEADER_BYTES
    for fact in facts:
        needed = _size(encode(fact))
        if run and size + needed > bytes_max:
            yield run
            run, size = [], HEADER_BYTES
        run.append(fact)
        size += needed
    if run:
        yield run


def _size(record: CoordinatorRecord | None) -> int:
    if record is None:
        return 0
    return len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES_MAX
