"""Batches behind one that was refused get its answer.

A producer has several requests in flight. If the first is refused for a reason that passes (this broker does not lead
yet, too few replicas, no room), and the reason passes before the second comes, the sequence of the second does not
follow. Told that its sequence is out of order, librdkafka begins a new epoch, and sends in it again whatever is not
acknowledged, to every partition; also what a leader has written that fell before it could say so. Nobody can tell that
this has been written already, so it is written twice. Told what the first was told, it sends both again, in order.

Decides what a batch out of order is told. Time is an argument.
"""

from collections.abc import Hashable
from typing import NamedTuple

from headrace.model.errors import HeadraceError, OutOfOrderSequence
from headrace.records.batch import HEADER_BYTES, BatchHeader, parse_header
from headrace.storage.producer.producer_state_entry import SEQUENCE_MASK

# What was sent behind a refused batch arrives within a second of it, or the connection is gone.
KEPT_MS = 10_000
# Producers that were refused within that time, in all partitions. One that is forgotten is told of its sequence.
NOTES_MAX = 10_000


class RejectedBatch(NamedTuple):
    sequence: int
    error: HeadraceError
    at_ms: int


class ProduceErrorCache:
    def __init__(self) -> None:
        self._notes: dict[Hashable, RejectedBatch] = {}

    def told(self, place: Hashable, batch: memoryview, error: HeadraceError, now_ms: int) -> HeadraceError:
        """What the producer of a batch that cannot be appended is told: nearly always the error."""
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
        # Else the frames that it passed live on with it, and what they hold: a client's batch, or the buffer it is in.
        note.error.__traceback__ = note.error.__cause__ = note.error.__context__ = None
        self._notes.pop(producer, None)  # the oldest stand first
        self._notes[producer] = note
        if len(self._notes) > NOTES_MAX:
            del self._notes[next(iter(self._notes))]


def _is_behind(header: BatchHeader, note: RejectedBatch) -> bool:
    """Later in the order of sequences, which go around."""
    return 0 < (header.base_sequence - note.sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2
