"""Producer snapshots at the ends of segments whose index of aborted transactions is not on disk yet.

Recovery reads markers only from a snapshot on, so the index below it has to be durable first. The event loop waits for
no fsync: the index is part of the log's next sync, and the snapshot is written when that sync has succeeded. A snapshot
that a crash prevents costs recovery some reading: it uses the one before.
"""

import logging

from headrace.model.errors import StorageError
from headrace.storage.files import Durable, Files
from headrace.storage.producer_snapshot import UnsyncedSnapshot, snapshot_path

log = logging.getLogger(__name__)


class DueSnapshot:
    """Takes part in a sync behind the index; may be called from another thread."""

    __slots__ = ("data", "is_due", "offset")

    def __init__(self, offset: int, data: bytes) -> None:
        self.offset, self.data, self.is_due = offset, data, False

    def sync(self) -> None:
        self.is_due = True


class DueSnapshots:
    """Of one log. Used on the event loop, where logs are truncated: no snapshot of truncated records is written."""

    __slots__ = ("_directory", "_files", "_waiting")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._waiting: list[DueSnapshot] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, offset: int, data: bytes) -> DueSnapshot:
        """Returns what to sync behind the index of aborted transactions."""
        snapshot = DueSnapshot(offset, data)
        self._waiting.append(snapshot)
        return snapshot

    def write(self) -> list[Durable]:
        """A sync has succeeded: write the snapshots that were part of it. Returns what the next sync includes."""
        due = [one for one in self._waiting if one.is_due]
        self._waiting = [one for one in self._waiting if not one.is_due]
        written: list[Durable] = []
        for snapshot in due:
            path = snapshot_path(self._directory, snapshot.offset)
            try:
                self._files.replace(path, snapshot.data, sync=False)
            except StorageError as error:
                log.warning("Cannot write %s; recovery uses an older snapshot: %s", path, error)
            else:
                written.append(UnsyncedSnapshot(self._files, path))
        return written

    def clear(self) -> None:
        """The log was truncated or abandoned."""
        self._waiting = []
