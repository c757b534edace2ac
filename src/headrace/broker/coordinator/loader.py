"""Loads a coordinator partition: replays its log into the state machine, in slices of event-loop time."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headrace.broker.replica.partition import Partition
from headrace.broker.runtime.cooperative import run_in_slices
from headrace.core.coordinator import CoordinatorRecord, CoordinatorShard, Producer, TransactionalMachine
from headrace.model.errors import CorruptLog
from headrace.records.batch import CODEC_MASK, CONTROL_FLAG, HEADER_BYTES, TRANSACTIONAL_FLAG, BatchHeader, walk
from headrace.records.control import read_marker
from headrace.records.record import iter_record_spans, records_section
from headrace.storage.segment.corrupt_ranges import holes_in
from headrace.storage.segment.index_rebuild import IndexRebuilding

log = logging.getLogger(__name__)

# Bytes per read; large enough that reads do not dominate.
REPLAY_BYTES = 1024 * 1024
# Records between two checks of the clock; about 0.1 ms of work.
RECORDS_A_STEP = 32


class CoordinatorLoader:
    """Replays everything in a partition's log into a state machine.

    Includes uncommitted records: a leader never truncates its log, and responses wait for the commit.
    """

    def __init__(self, machine: CoordinatorShard[Any], partition: Partition, *, skips_corruption: bool = False) -> None:
        """With `skips_corruption`, corrupt offsets are logged and skipped. Otherwise CorruptLog is raised."""
        self._machine = machine
        self._partition = partition
        self._offset = partition.log_start_offset
        self._skips_corruption = skips_corruption

    async def run(self) -> None:
        end = self._partition.log_end_offset
        while self._offset < end:
            try:
                piece = self._partition.read_uncommitted(self._offset, REPLAY_BYTES)
            except IndexRebuilding as wait:
                await wait.rebuilt()
                continue
            except CorruptLog as corruption:
                if not self._skips_corruption:
                    raise
                self._skip(corruption)
                continue
            if piece is None:
                return
            data = await asyncio.to_thread(piece.read)  # after a start, the data may not be in the page cache
            await run_in_slices(self._batches(data))

    def _skip(self, corruption: CorruptLog) -> None:
        """Continues after the corrupt offsets. Raises the error again if their end is unknown."""
        holes = (one for one in holes_in(self._partition.log) if one.base_offset <= self._offset < one.next_offset)
        end = max((one.next_offset for one in holes), default=None)
        if end is None:
            raise corruption
        log.critical(
            "%s: offsets %d to %d are corrupt, and no other replica has them; their records are skipped. "
            "Offsets that were committed in them are lost: %s",
            self._partition,
            self._offset,
            end - 1,
            corruption,
        )
        self._offset = end

    def _batches(self, data: bytes) -> Iterator[None]:
        records_left = RECORDS_A_STEP
        for position, header in walk(data):
            end = position + header.total_bytes
            if header.attributes & CONTROL_FLAG:
                self._control(memoryview(data)[position:end], header)
                yield
            else:
                # Coordinator batches are uncompressed and most hold one record, so the common path avoids extra calls.
                plain = not header.attributes & CODEC_MASK
                section = data[position + HEADER_BYTES : end] if plain else records_section(data[position:end], header)
                replay = self._replay_of(header)
                for offset, _, key, value_at, value_end, _, _ in iter_record_spans(section, header):
                    replay(
                        CoordinatorRecord(key or b"", section[value_at:value_end] if value_at >= 0 else None), offset
                    )
                    records_left -= 1
                    if not records_left:
                        records_left = RECORDS_A_STEP
                        yield
            self._offset = header.base_offset + header.last_offset_delta + 1

    def _control(self, batch: memoryview, header: BatchHeader) -> None:
        marker = read_marker(batch, header)
        if marker is not None and isinstance(self._machine, TransactionalMachine):
            self._machine.transaction_ended(header.producer_id, committed=marker.commits)

    def _replay_of(self, header: BatchHeader) -> Callable[[CoordinatorRecord, int], None]:
        machine = self._machine
        if header.attributes & TRANSACTIONAL_FLAG and isinstance(machine, TransactionalMachine):
            producer = Producer(header.producer_id, header.producer_epoch)
            return partial(machine.replay_in_transaction, producer=producer)
        return machine.replay
