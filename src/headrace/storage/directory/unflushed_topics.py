"""The topics whose records this directory may have acknowledged before they were synced: `.headrace_unsynced`.

Recovery of a replica after a host crash depends on this file, not on the current `flush.policy`: the policy may have
changed since the records were acknowledged. A topic is in the file, durably, before its first record is acknowledged
under `flush.policy=replicated`. It is removed from the file once every such record is synced.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from uuid import UUID

from headrace.model.errors import CorruptLog
from headrace.records.crc import crc32c
from headrace.storage.directory.checkpoint_files import read_rows, write_rows
from headrace.storage.directory.partition_metadata_file import uuid_from_text, uuid_to_text
from headrace.storage.io.file_system import FileSystem

log = logging.getLogger(__name__)

FILE_NAME = ".headrace_unsynced"


class UnsyncedTopics:
    """Set of topic ids. Thread-safe. `add` and `write` block on the disk; `in` and `remove` do not."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self._writing = threading.Lock()
        self.is_recorded = files.exists(self._path)  # False if only versions without this file have used the directory
        self.was_corrupt = False
        self._topic_ids: set[UUID] = set()
        if self.is_recorded:
            try:
                self._topic_ids = _decode(read_rows(files, self._path, columns=1), self._path)
            except CorruptLog as error:
                self.was_corrupt = True
                log.error("%s; after a host crash, every topic counts as acknowledged before it was synced", error)

    def as_recorded(self) -> Callable[[UUID], bool | None]:
        """Returns a test whether records of a topic may have been acknowledged unsynced; it returns None if unknown.

        Later changes do not affect the result.
        """
        if not self.is_recorded:
            return lambda _: None
        return (lambda _: True) if self.was_corrupt else self.topic_ids().__contains__

    def __contains__(self, topic_id: UUID) -> bool:
        return topic_id in self._topic_ids

    def topic_ids(self) -> frozenset[UUID]:
        return frozenset(self._topic_ids)

    def add(self, topic_ids: Iterable[UUID]) -> None:
        """Adds the topics durably. `in` is True only after the write."""
        added = set(topic_ids)
        with self._writing:
            self._write(self._topic_ids | added)
            self._topic_ids.update(added)

    def remove(self, topic_ids: Iterable[UUID]) -> None:
        """Removes the topics, durably after `write`.

        A topic that stays in the file makes recovery stricter, which is safe.
        """
        self._topic_ids.difference_update(topic_ids)

    def write(self) -> None:
        with self._writing:
            self._write(self._topic_ids)

    def _write(self, topic_ids: set[UUID]) -> None:
        rows = sorted(map(uuid_to_text, frozenset(topic_ids)))
        write_rows(self._files, self._path, [*rows, _checksum(rows)])
        self.is_recorded = True


def _decode(rows: list[list[str]], path: str) -> set[UUID]:
    texts = [text for (text,) in rows]
    if not texts or texts[-1] != _checksum(texts[:-1]):
        raise CorruptLog(f"{path}: the checksum is wrong")
    return {uuid_from_text(text) for text in texts[:-1]}


def _checksum(rows: list[str]) -> str:
    return f"crc32c:{crc32c(chr(10).join(rows).encode())}"
