"""What a log answers with."""

from typing import NamedTuple

from headrace.storage.io.file_system import File


class FileRecords(NamedTuple):
    """Whole batches as they lie in a file: what a Fetch answers with, without reading them."""

    file: File
    position: int
    length: int
    checked_bytes: int = 0  # that were read and checked for it, because this process had not read them before

    def read(self) -> bytes:
        return self.file.read(self.position, self.length)


class Producer(NamedTuple):
    """Who writes: an id, and the epoch that fences its predecessors."""

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
