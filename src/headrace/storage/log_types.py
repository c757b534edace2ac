"""Result types of a log."""

from typing import NamedTuple

from headrace.storage.io.file_system import File


class FileRecords(NamedTuple):
    """Whole batches in a file. A Fetch response sends them without reading them."""

    file: File
    position: int
    length: int
    # bytes that were read and checked for this read, because this process had not read them before
    checked_bytes: int = 0

    def read(self) -> bytes:
        return self.file.read(self.position, self.length)


class Producer(NamedTuple):
    """A producer id, and the epoch that fences earlier instances."""

    producer_id: int
    epoch: int


class LogAppendInfo(NamedTuple):
    base_offset: int
    next_offset: int
    duplicate: bool


class TimestampAndOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int
