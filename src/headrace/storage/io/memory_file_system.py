"""Files in memory: nothing touches the disk, and `sendfile` works all the same."""

import os
import threading

from headrace.model.errors import MissingFile
from headrace.storage.io.file_system import File, OsFile, as_storage_error


class MemoryFile(OsFile):
    """A memfd. Closing it keeps the bytes, as closing a file on disk does; they go when nobody holds it."""

    __slots__ = ()

    def sync(self) -> None:
        """Memory has nothing to wait for."""

    def write_again(self) -> None:
        """No sync of memory fails."""

    def preallocate_tail(self, end: int) -> None:
        """Nothing is gained by it where nothing is synced."""

    def close(self) -> None:
        """The descriptor is the file: it goes when the last holder of this object goes."""


def _new_file(path: str) -> MemoryFile:
    try:
        # The kernel takes a label of 249 bytes at most.
        return MemoryFile(os.memfd_create(os.path.basename(path)[:200]), path)
    except OSError as error:
        raise as_storage_error(error, path) from error


class MemoryFiles:
    """A file system that ends with its process: the same code on memfd files.

    What is only ever replaced as a whole (checkpoints and the like) is kept as plain bytes: a descriptor for each
    would make ten thousand partitions cost forty thousand descriptors.
    """

    # Memory has no statvfs; the reserve check of the disk is answered with "plenty", retention bounds the rest.
    FREE_BYTES = 1 << 60

    def __init__(self) -> None:
        self._dirs: dict[str, dict[str, MemoryFile | bytes]] = {}
        # The loop and threads use the directories at once. No call waits for anything while it holds the lock.
        self._lock = threading.Lock()

    def _entry(self, path: str) -> MemoryFile | bytes:
        """With the lock held."""
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
        del folders  # closes the files, without the lock

    def sync_dir(self, path: str) -> None:
        """A directory in memory is never behind."""

    def boot_id(self) -> str:
        return ""  # nothing of it outlives the process

    def identity(self, path: str) -> str:
        return ""

    def free_bytes(self, path: str) -> int:
        return self.FREE_BYTES

    def total_bytes(self, path: str) -> int:
        return self.FREE_BYTES
