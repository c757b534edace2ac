"""What the log tests share: a log in memory, and batches for it."""

from collections.abc import Sequence
from dataclasses import replace

from headrace.config.values import LogConfig
from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.storage.io.file_system import FileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log import Log
from headrace.storage.log_types import LogAppendInfo

CONFIG = replace(LogConfig(), index_interval_bytes=100)


def new_log(files: FileSystem | None = None, config: LogConfig = CONFIG) -> Log:
    return Log.create(files if files is not None else MemoryFiles(), "/data/t-0", config, now_ms=0)


def batch_of(values: Sequence[str], *, timestamp: int = 1_000, **fields: int) -> bytes:
    records = [NewRecord(timestamp + number, None, value.encode()) for number, value in enumerate(values)]
    return build_batch(records, **fields)


def append(
    log: Log, *values: str, timestamp: int = 1_000, epoch: int = 0, now_ms: int = 0, **fields: int
) -> LogAppendInfo:
    batch = memoryview(bytearray(batch_of(values, timestamp=timestamp, **fields)))
    return log.append(batch, parse_header(batch), epoch, now_ms)


def read_values(log: Log, offset: int = 0, limit: int | None = None) -> list[str]:
    """Every value from the offset on, as a consumer that fetches again and again would see them."""
    from headrace.records.batch import walk
    from headrace.records.record import decode_records

    values: list[str] = []
    end = log.log_end_offset if limit is None else limit
    while offset < end:
        piece = log.read(offset, 1, end)
        if piece is None:
            break
        data = memoryview(piece.read())
        for position, header in walk(data):
            records = decode_records(data[position : position + header.total_bytes], header)
            values += [(record.value or b"").decode() for record in records if record.offset >= offset]
            offset = header.next_offset
    return values
