"""Transactions as compaction walks past them: whose records were aborted, and which markers have outlived theirs.

A marker stays as long as a batch of its transaction does: without it a reader would take aborted records for
committed ones, or wait for an end that never comes. It is told apart here, and removed by the cleaner only after
the delete horizon, so that a reader that is in the middle of the transaction still meets it.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from headrace.records.batch import BatchHeader
from headrace.records.control import EndMarker
from headrace.storage.txn_index import AbortedTxn


class CleanedTransactions:
    """Fed with every batch in log order, and with the aborted transactions before the batches they speak of."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, AbortedTxn]] = []  # a heap by first offset
        self._aborted: dict[int, AbortedTxn] = {}
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def expect(self, aborted: Iterable[AbortedTxn]) -> None:
        """One that is expected twice, because it spans what is asked for separately, is still one."""
        for txn in aborted:
            heappush(self._coming, (txn.first_offset, txn))

    def data_batch(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to a transaction that was aborted, so that nobody needs its records."""
        self._reach(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted_with_data.add(header.producer_id)
            return True
        self._committed_with_data.add(header.producer_id)
        return False

    def marker(self, header: BatchHeader, marker: EndMarker | None) -> tuple[bool, AbortedTxn | None]:
        """Whether the marker has outlived its transaction; if not, and that was aborted, its index entry.

        None stands for a control batch without a marker: emptied before, or of a kind that ends nothing.
        """
        self._reach(header.last_offset)
        if marker is None:
            return not header.record_count, None
        producer_id = header.producer_id
        if marker.commits:
            had_data = producer_id in self._committed_with_data
            self._committed_with_data.discard(producer_id)
            return not had_data, None
        txn = self._aborted.pop(producer_id, None)
        had_data = producer_id in self._aborted_with_data
        self._aborted_with_data.discard(producer_id)
        return not had_data, txn if had_data else None

    def _reach(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            txn = heappop(self._coming)[1]
            self._aborted.setdefault(txn.producer_id, txn)
