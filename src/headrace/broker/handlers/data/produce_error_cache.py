"""Propagates a retriable produce error to the in-flight batches behind the rejected one.

An idempotent producer has several requests in flight. If the first is rejected with a retriable error (this broker
does not lead yet, too few in-sync replicas, insufficient disk space), and the cause is over when the second arrives,
the second has a sequence gap. On OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka bumps its epoch and resends everything that
is not acknowledged, to every partition, including batches that a leader appended before it failed to respond. Brokers
cannot detect such duplicates in a new epoch, so they are written twice. With the error of the first batch, the
producer resends both in order under the same epoch.

Pure; the time is an argument.
"""

from collections.abc import Hashable
from typing import NamedTuple

from headrace.model.errors import HeadraceError, OutOfOrderSequence
from headrace.records.batch import HEADER_BYTES, BatchHeader, parse_header
from headrace.storage.producer.producer_state_entry import SEQUENCE_MASK

# Batches sent behind a rejected one arrive within a second of it, or the connection is closed.
KEPT_MS = 10_000
# Maximum rejected producers within that time, over all partitions. A batch behind an evicted one gets its sequence
# error.
NOTES_MAX = 10_000


class RejectedBatch(NamedTuple):
    sequence: int
    error: HeadraceError
    at_ms: int


class ProduceErrorCache:
    def __init__(self) -> None:
        self._notes: dict[Hashable, RejectedBatch] = {}

    def told(self, place: Hashable, batch: memoryview, error: HeadraceError, now_ms: int) -> HeadraceError:
        """Returns the error to send for a batch that cannot be appended: nearly always `error`."""
        is_out_of_order = isinstance(error, OutOfOrderSequence)
        if not (error.retriable or is_out_of_order) or len(batch) < HEADER_BYTES:
            return error
        header = parse_header(batch)
        if header.producer_id < 0:
            return error
        producer = (place, header.producer_id, header.producer_epoch)
        note = self._notes.get(producer)
        if note is not None and now_ms - note.at_ms > KEPT_MS:
            note = None
        if not is_out_of_order:
            if note is None or not _is_behind(header, note):
                self._keep(producer, RejectedBatch(header.base_sequence, error, now_ms))
        elif note is not None and _is_behind(header, note):
            return note.error
        return error

    def _keep(self, producer: Hashable, note: RejectedBatch) -> None:
        # The traceback would keep its frames alive and what they reference: a client's batch, or the buffer that holds
        # it.
        note.error.__traceback__ = note.error.__cause__ = note.error.__context__ = None
        self._notes.pop(producer, None)  # keeps the oldest first
        self._notes[producer] = note
        if len(self._notes) > NOTES_MAX:
            del self._notes[next(iter(self._notes))]


def _is_behind(header: BatchHeader, note: RejectedBatch) -> bool:
    """Whether the batch has a later sequence number, with wrap-around."""
    return 0 < (header.base_sequence - note.sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2
