"""What has to hold for a simulated log after every step: it agrees with the model of it."""

from collections.abc import Callable, Iterator

from headrace.records.batch import BatchHeader, walk
from headrace.records.control import read_marker
from headrace.records.record import decode_records
from headrace.storage.log import Log
from headrace.storage.segment.transaction_index import AbortedTxn
from tests.simulation.log_model import PRODUCERS, KeyAndValue, LogModel, known_producers, last_stable_offset


class AbortedFilter:
    """The transactions that a `read_committed` consumer leaves out of one fetch response."""

    def __init__(self, aborted: list[AbortedTxn]) -> None:
        self._coming = sorted(aborted, key=lambda one: one.first_offset)
        self._open: set[int] = set()

    def accepts(self, batch: bytes, header: BatchHeader) -> bool:
        while self._coming and self._coming[0].first_offset <= header.last_offset:
            self._open.add(self._coming.pop(0).producer_id)
        if not header.is_control:
            return not (header.is_transactional and header.producer_id in self._open)
        marker = read_marker(batch, header) if header.record_count else None
        if marker is not None and not marker.commits:
            self._open.discard(header.producer_id)
        return False


def read_committed(
    log: Log, offset: int, limit: int, fetch_bytes: Callable[[], int]
) -> Iterator[tuple[int, KeyAndValue]]:
    """Every record below `limit` with its offset, by as many fetches as that takes."""
    while offset < limit:
        piece = log.read(offset, fetch_bytes(), limit)
        if piece is None:
            return
        aborted = AbortedFilter(log.aborted_transactions(offset, piece))
        data = memoryview(piece.read())
        next_offset = None
        for position, header in walk(data):
            next_offset = header.next_offset
            batch = data[position : position + header.total_bytes]
            if not aborted.accepts(bytes(batch), header):
                continue
            for record in decode_records(batch, header):
                if record.offset >= offset:
                    value = None if record.value is None else record.value.decode()
                    yield record.offset, ((record.key or b"").decode(), value)
        assert next_offset is not None, "a fetch response without a batch"
        offset = next_offset


def check_records(log: Log, model: LogModel, start: int, fetch_bytes: Callable[[], int]) -> None:
    """A `read_committed` consumer reads what was committed, and nothing that was aborted."""
    end = last_stable_offset(log.producers, model.high_watermark, log.log_start_offset)
    found, wanted = dict(read_committed(log, start, end, fetch_bytes)), model.committed(start, end)
    for offset, record in found.items():
        entry = model.entries[offset]
        assert wanted.get(offset) == record, f"offset {offset}: {record} is visible, and was written as {entry}"
    if not log.config.compacts:
        assert found == wanted, f"offsets {sorted(set(wanted) - set(found))} are missing"
    last_of_key = {key: (offset, value) for offset, (key, value) in wanted.items()}
    for key, (offset, value) in last_of_key.items():
        assert offset in found or value is None, f"the last record of key {key} is missing, at offset {offset}"


def check_producers(log: Log, model: LogModel) -> None:
    start = log.log_start_offset
    without_records = model.without_records(start)
    for producer_id in PRODUCERS:
        expected, entry = model.producers[producer_id], log.producers.get(producer_id)
        if entry is None:
            is_new = expected.epoch == expected.next_sequence == 0
            assert is_new or model.may_be_forgotten(producer_id), f"producer {producer_id} is unknown"
            continue
        has_forgotten = producer_id in model.has_expired and not entry.batches
        if not (has_forgotten or producer_id in model.may_be_behind or producer_id in without_records):
            found = (entry.epoch, entry.next_sequence)
            assert found == (expected.epoch, expected.next_sequence), f"producer {producer_id}: {found}, not {expected}"
        transaction = model.open.get(producer_id)
        if transaction is None:
            assert entry.txn_first_offset is None, f"producer {producer_id}: a transaction stays open"
        elif transaction.first_offset >= start:
            assert entry.txn_first_offset == transaction.first_offset, f"producer {producer_id}: another transaction"


def check_last_stable_offset(log: Log, model: LogModel) -> None:
    start = log.log_start_offset
    found = last_stable_offset(log.producers, model.high_watermark, start)
    at_most, at_least = model.last_stable_offset_at_most(start), model.last_stable_offset_at_least()
    assert found <= max(at_most, start), f"last stable offset {found}, and a transaction is open from {at_most}"
    assert found >= at_least, f"last stable offset {found}, and every transaction below {at_least} has ended"


def check_recovered(log: Log, model: LogModel) -> None:
    """After a start, and before the model follows it: nothing acknowledged is lost, nothing is made up."""
    assert not log.holes, f"corrupt ranges: {log.holes}"
    assert not any(segment.holes for segment in log.segments), "corrupt ranges in segments"
    assert log.log_end_offset >= model.high_watermark, f"lost from {log.log_end_offset} to {model.high_watermark}"
    assert log.log_end_offset <= model.end_offset, f"made up from {model.end_offset} to {log.log_end_offset}"
    assert model.start <= log.log_start_offset <= model.start_asked, f"log start {log.log_start_offset}"


def forget_lost_producers(log: Log, model: LogModel) -> None:
    """A producer whose batches are all deleted may be unknown after a start; no other one."""
    for producer_id in set(PRODUCERS) - set(known_producers(log.producers)):
        left = model.offsets_of(producer_id, log.log_start_offset)
        assert not left or model.may_be_forgotten(producer_id), f"producer {producer_id} wrote at {left[-3:]}"
        model.may_be_unknown.add(producer_id)
