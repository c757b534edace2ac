"""File system in memory, on memfd files: writes nothing to disk, and supports `sendfile`."""

import os
import threading

from headrace.model.errors import MissingFile
from headrace.storage.io.file_system import File, OsFile, as_storage_error


class MemoryFile(OsFile):
    """A memfd. `close` keeps the bytes, as closing a file on disk does; the last reference frees them."""

    __slots__ = ()

    def sync(self) -> None:
        """Does nothing: memory needs no sync."""

    def write_again(self) -> None:
        """Does nothing: a sync of memory does not fail."""

    def preallocate_tail(self, end: int) -> None:
        """Does nothing: preallocation only makes syncs faster."""

    def close(self) -> None:
        """Does nothing: the descriptor is the file, and is closed with the last reference to this object."""


def _new_file(path: str) -> MemoryFile:
    try:
        # The kernel accepts names of at most 249 bytes.
        return MemoryFile(os.memfd_create(os.path.basename(path)[:200]), path)
    except OSError as error:
        raise as_storage_error(error, path) from error


class MemoryFiles:
    """A file system that ends with its process: the same code on memfd files.

    Files that are only replaced as a whole (checkpoints and the like) are plain bytes: with a descriptor for each of
    them, ten thousand partitions would need forty thousand descriptors.
    """

    # Memory has no statvfs: the check of the disk reserve always passes, and retention bounds the memory.
    FREE_BYTES = 1 << 60

    def __init__(self) -> None:
        self._dirs: dict[str, dict[str, MemoryFile | bytes]] = {}
        # The event loop and threads use the directories concurrently. No call blocks while it holds the lock.
        self._lock = threading.Lock()

    def _entry(self, path: str) -> MemoryFile | bytes:
        """Returns the entry at `path`. The caller holds the lock."""
        folder, name = os.path.split(path)
        try:
            return self._dirs[folder][name]
        except KeyError:
            raise MissingFile(f"{path}: no such file in memory") from None

    def open(self, path: str, *, create: bool = False) -> File:
        folder, name = os.path.split(path)
        with self._lock:
            if create and name not in self._dirs.setdefault(folder, {}):
                self._dirs[folder][name] = _new_file(path)
            entry = self._entry(path)
            if isinstance(entry, bytes):
                file = _new_file(path)
                file.append(entry)
                self._dirs[folder][name] = entry = file
            return entry

    def read(self, path: str) -> bytes:
        with self._lock:
            entry = self._entry(path)
        return entry if isinstance(entry, bytes) else entry.read(0, entry.size)

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        folder, name = os.path.split(path)
        with self._lock:
            self._dirs.setdefault(folder, {})[name] = bytes(data)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            if old in self._dirs:
                self._dirs[new] = self._dirs.pop(old)
                return
            entry = self._entry(old)
            folder, name = os.path.split(new)
            self._dirs.setdefault(folder, {})[name] = entry
            folder, name = os.path.split(old)
            del self._dirs[folder][name]

    def remove(self, path: str) -> None:
        folder, name = os.path.split(path)
        with self._lock:
            self._entry(path)
            del self._dirs[folder][name]

    def exists(self, path: str) -> bool:
        folder, name = os.path.split(path)
        with self._lock:
            return path in self._dirs or name in self._dirs.get(folder, {})

    def list(self, directory: str) -> list[str]:
        with self._lock:
            below = {os.path.basename(path) for path in self._dirs if os.path.dirname(path) == directory}
            return sorted(below | set(self._dirs.get(directory, {})))

    def make_dir(self, path: str) -> None:
        with self._lock:
            self._dirs.setdefault(path, {})

    def remove_tree(self, path: str) -> None:
        with self._lock:
            removed = [name for name in self._dirs if name == path or name.startswith(path + "/")]
            folders = [self._dirs.pop(folder) for folder in removed]
        del folders  # closes the files, outside of the lock

    def sync_dir(self, path: str) -> None:
        """Does nothing: a directory in memory needs no sync."""

    def boot_id(self) -> str:
        return ""  # no content survives the process

    def identity(self, path: str) -> str:
        return ""

    def free_bytes(self, path: str) -> int:
        return self.FREE_BYTES

    def total_bytes(self, path: str) -> int:
        return self.FREE_BYTES
