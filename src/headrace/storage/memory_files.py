"""Files in memory: nothing touches the disk, and `sendfile` works all the same."""

import errno
import os

from headrace.storage.files import File, OsFile


class MemoryFile(OsFile):
    """A memfd. Closing it keeps the bytes, as closing a file on disk does; they go when nobody holds it."""

    __slots__ = ()

    def sync(self) -> None:
        """Memory has nothing to wait for."""

    def make_room(self, end: int) -> None:
        """Nothing is gained by it where nothing is synced."""

    def close(self) -> None:
        """The descriptor is the file: it goes when the last holder of this object goes."""


class MemoryFiles:
    """A file system that ends with its process: the same code on memfd files.

    What is only ever replaced as a whole (checkpoints and the like) is kept as plain bytes: a descriptor for each
    would make ten thousand partitions cost forty thousand descriptors.
    """

    # Memory has no statvfs; the reserve check of the disk is answered with "plenty", retention bounds the rest.
    FREE_BYTES = 1 << 60

    def __init__(self) -> None:
        self._dirs: dict[str, dict[str, MemoryFile | bytes]] = {}

    def _entry(self, path: str) -> MemoryFile | bytes:
        folder, name = os.path.split(path)
        try:
            return self._dirs[folder][name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file in memory", path) from None

    def open(self, path: str, *, create: bool = False) -> File:
        folder, name = os.path.split(path)
        if create and name not in self._dirs.setdefault(folder, {}):
            # The kernel takes a label of 249 bytes at most.
            self._dirs[folder][name] = MemoryFile(os.memfd_create(name[:200]), path)
        entry = self._entry(path)
        if isinstance(entry, bytes):
            file = MemoryFile(os.memfd_create(name[:200]), path)
            file.append(entry)
            self._dirs[folder][name] = entry = file
        return entry

    def read(self, path: str) -> bytes:
        entry = self._entry(path)
        return entry if isinstance(entry, bytes) else entry.read(0, entry.size)

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        folder, name = os.path.split(path)
        self._dirs.setdefault(folder, {})[name] = bytes(data)

    def rename(self, old: str, new: str) -> None:
        if old in self._dirs:
            self._dirs[new] = self._dirs.pop(old)
            return
        entry = self._entry(old)
        folder, name = os.path.split(new)
        self._dirs.setdefault(folder, {})[name] = entry
        folder, name = os.path.split(old)
        del self._dirs[folder][name]

    def remove(self, path: str) -> None:
        self._entry(path)
        folder, name = os.path.split(path)
        del self._dirs[folder][name]

    def exists(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return path in self._dirs or name in self._dirs.get(folder, {})

    def list(self, directory: str) -> list[str]:
        below = {os.path.basename(path) for path in self._dirs if os.path.dirname(path) == directory}
        return sorted(below | set(self._dirs.get(directory, {})))

    def make_dir(self, path: str) -> None:
        self._dirs.setdefault(path, {})

    def remove_tree(self, path: str) -> None:
        for folder in [name for name in self._dirs if name == path or name.startswith(path + "/")]:
            del self._dirs[folder]

    def sync_dir(self, path: str) -> None:
        """A directory in memory is never behind."""

    def boot_id(self) -> str:
        return ""  # nothing of it outlives the process

    def free_bytes(self, path: str) -> int:
        return self.FREE_BYTES

    def total_bytes(self, path: str) -> int:
        return self.FREE_BYTES
