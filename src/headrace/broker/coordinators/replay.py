"""Reading a coordinator's log back into its machine, a little at a time."""

from collections.abc import Iterator
from typing import Any

from headrace.broker.partition import Partition
from headrace.core.coordinator import LogRecord, Machine, Producer, TransactionalMachine
from headrace.records.batch import BatchHeader, walk
from headrace.records.control import read_marker
from headrace.records.record import decode_records

# One read while replaying: large enough that reading is not what costs.
REPLAY_BYTES = 1024 * 1024


def replay(machine: Machine[Any], partition: Partition) -> Iterator[None]:
    """Everything that is committed, a batch a step."""
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        piece = partition.read(offset, REPLAY_BYTES, read_committed=False)
        if piece is None:
            return
        data = memoryview(piece.read())
        for position, header in walk(data):
            _replay_batch(machine, data[position : position + header.total_bytes], header)
            offset = header.next_offset
            yield


def _replay_batch(machine: Machine[Any], batch: memoryview, header: BatchHeader) -> None:
    if header.is_control:
        marker = read_marker(batch, header)
        if marker is not None and isinstance(machine, TransactionalMachine):
            machine.transaction_ended(header.producer_id, committed=marker.commits)
        return
    producer = Producer(header.producer_id, header.producer_epoch)
    for record in decode_records(batch, header):
        plain = LogRecord(record.key or b"", record.value)
        if header.is_transactional and isinstance(machine, TransactionalMachine):
            machine.replay_in_transaction(plain, record.offset, producer)
        else:
            machine.replay(plain, record.offset)
