"""Filters fetched batches for a `read_committed` consumer: drops markers and aborted records.

The Fetch response lists the aborted transactions that overlap it, with producer id and first offset. Each lasts until
the producer's abort marker. Batches are passed in offset order.
"""

from collections.abc import Iterable, Iterator, Sequence

from headrace.records.batch import BatchHeader
from headrace.records.control import read_marker

AbortedTransaction = tuple[int, int]  # producer id, first offset


def committed_batches(
    batches: Iterable[tuple[memoryview, BatchHeader]], aborted: Sequence[AbortedTransaction] | None
) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yields the batches with visible records. `aborted` is None for `read_uncommitted`, which skips only markers."""
    coming = sorted(aborted or (), key=lambda transaction: transaction[1], reverse=True)
    open_aborted: set[int] = set()
    for batch, header in batches:
        while coming and coming[-1][1] <= header.last_offset:
            open_aborted.add(coming.pop()[0])
        if header.is_control:
            if header.producer_id in open_aborted:
                marker = read_marker(batch, header)
                if marker is not None and not marker.commits:
                    open_aborted.discard(header.producer_id)
        elif header.record_count and not (header.is_transactional and header.producer_id in open_aborted):
            yield batch, header
