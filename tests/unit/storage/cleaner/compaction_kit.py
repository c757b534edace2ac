"""What the compaction tests share: logs of keyed records, transactions in them, and a round of cleaning."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace.config.values import LogConfig
from headrace.records.batch import BatchHeader, batch_crc, parse_header, patch_offset_and_epoch, walk
from headrace.records.builder import NewRecord, build_batch
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.records.record import Record, decode_records
from headrace.storage.cleaner.cleaner import Cleaned, Cleaner
from headrace.storage.cleaner.log_to_clean import LogToClean, cleanable
from headrace.storage.cleaner.offset_map import KEY_MAP_BYTES_MAX
from headrace.storage.io.file_system import FileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.segment.segment_replacement import finish_swaps
from headrace.storage.segment.transaction_index import AbortedTxn

DIRECTORY = "/data/t-0"
DELETE_RETENTION_MS = 1_000
COMPACTED = replace(
    LogConfig(),
    cleanup_policy=frozenset({"compact"}),
    index_interval_bytes=100,
    delete_retention_ms=DELETE_RETENTION_MS,
    min_cleanable_dirty_ratio=0.0,
)

KeyValue = tuple[str | None, str | None]


def new_log(files: FileSystem | None = None, config: LogConfig = COMPACTED) -> Log:
    return Log.create(files if files is not None else MemoryFiles(), DIRECTORY, config, now_ms=0)


def write(log: Log, *pairs: KeyValue, timestamp: int = 100, **fields: int | bool) -> BatchHeader:
    """One batch of these keys and values; a value of None is a tombstone."""
    records = [NewRecord(timestamp, _encoded(key), _encoded(value)) for key, value in pairs]
    batch = memoryview(bytearray(build_batch(records, **fields)))  # type: ignore[arg-type]
    header = parse_header(batch)
    appended = log.append(batch, header, 0, 0)
    return header._replace(base_offset=appended.base_offset)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def end_transaction(log: Log, producer_id: int, *, commit: bool, epoch: int = 0, timestamp: int = 100) -> None:
    """What a coordinator makes the log do: a marker, and an entry in the index for an abort."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    data = build_marker_batch(EndMarker(kind, 0), producer_id=producer_id, producer_epoch=epoch, timestamp=timestamp)
    batch = memoryview(bytearray(data))
    patch_offset_and_epoch(batch, log.log_end_offset, 0)
    header = parse_header(batch)
    log.active.append(batch, header)
    log.log_end_offset = log.active.next_offset
    completed = log.producers.applied_marker(header, aborted=not commit, coordinator_epoch=0)
    log.producers.high_watermark_advanced(log.log_end_offset)
    if completed is not None and completed.aborted:
        log.active.aborted.note(
            AbortedTxn(producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset)
        )


def roll(log: Log) -> None:
    log.roll(0)


def sync(log: Log) -> None:
    work, end = log.unsynced()
    for item in work:
        item.sync()
    log.synced(end)
    log.files.sync_dir(log.directory)


def dirty_part(log: Log, *, cleaned_to: int = 0, now_ms: int = 200) -> LogToClean:
    unstable = log.producers.first_unstable_offset
    return cleanable(
        log.segments,
        cleaned_to=cleaned_to,
        log_start_offset=log.log_start_offset,
        stable_offset=log.log_end_offset if unstable is None else unstable,
        config=log.config,
        now_ms=now_ms,
    )


def cleaner(log: Log, *, cleaned_to: int = 0, now_ms: int = 200, key_map_bytes_max: int = KEY_MAP_BYTES_MAX) -> Cleaner:
    dirty = dirty_part(log, cleaned_to=cleaned_to, now_ms=now_ms)
    return Cleaner(log, dirty, now_ms=now_ms, key_map_bytes_max=key_map_bytes_max)


def clean(log: Log, *, cleaned_to: int = 0, now_ms: int = 200, key_map_bytes_max: int = KEY_MAP_BYTES_MAX) -> Cleaned:
    """A whole round, and the replaced segments removed at once: nobody reads them here."""
    task = cleaner(log, cleaned_to=cleaned_to, now_ms=now_ms, key_map_bytes_max=key_map_bytes_max).run()
    cleaned = run_through(task)
    for replaced in cleaned.replaced:
        replaced.remove(log.files)
    return cleaned


def reopen(files: FileSystem, config: LogConfig = COMPACTED, *, recovery_point: int = 0) -> Log:
    finish_swaps(files, DIRECTORY)
    return open_log(files, DIRECTORY, config, Checkpoint(recovery_point=recovery_point), now_ms=0)


def batches(log: Log) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Every batch, as a consumer that fetches again and again is given them; their checksums are right."""
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20, log.log_end_offset)) is not None:
        data = memoryview(piece.read())
        for position, header in walk(data):
            batch = data[position : position + header.total_bytes]
            assert batch_crc(batch) == header.crc
            assert header.next_offset > offset, "batches come in order"
            offset = header.next_offset
            yield batch, header


def records(log: Log, *, control: bool = False) -> list[Record]:
    return [
        record
        for batch, header in batches(log)
        if header.is_control == control
        for record in decode_records(batch, header)
    ]


def last_values(found: Sequence[Record]) -> dict[bytes | None, bytes]:
    """What somebody who reads all of it ends up with: deleted keys are not there."""
    last = {record.key: record.value for record in found}
    return {key: value for key, value in last.items() if value is not None}


def pairs(log: Log) -> list[tuple[int, str, str | None]]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for record in records(log)
    ]


def names(log: Log) -> list[str]:
    return log.files.list(log.directory)
