"""Rebuilds the transaction index of an inactive segment from the batches, while the log is in use."""

from headrace.storage.log import Log
from headrace.storage.producer.producer_state_loader import replay_to
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.transaction_index import AbortedTxn, PreparedIndex


class IndexRepair:
    """A rebuilt index. Its file is not in use until `apply`."""

    def __init__(
        self, log: Log, segment: LogSegment, prepared: PreparedIndex, txns: list[AbortedTxn], truncations: int
    ) -> None:
        self._log = log
        self._segment = segment
        self._prepared = prepared
        self._txns = txns
        self._truncations = truncations

    def apply(self) -> bool:
        """Adopts the index, on the event loop.

        Returns False if the segment has left the log or the log was truncated.
        """
        if self._log.truncations != self._truncations or self._segment not in self._log.segments[:-1]:
            return False
        self._segment.aborted.adopt(self._prepared, self._txns)
        return True


def rebuild_index(log: Log, segment: LogSegment) -> IndexRepair:
    """Rebuilds the index.

    Reads up to the whole log, so it may run in a thread. Raises NewHoles if a batch is corrupt.
    """
    truncations = log.truncations
    segments = [one for one in log.segments if one.base_offset <= segment.base_offset]
    replayed = replay_to(log.files, log.directory, segments, segment.size, segment.next_offset)
    found = next(one for one in replayed.indexes if one.segment is segment)
    prepared = segment.aborted.prepare_rewrite(found.start, segment.next_offset, found.txns)
    return IndexRepair(log, segment, prepared, found.txns, truncations)
