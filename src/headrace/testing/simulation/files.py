"""SimFiles: the FileSystem interface of `headrace.storage.io.file_system` in memory, with fault injection.

    files = SimFiles()
    files.fail("sync", path="*.log")            # the next fsync of a log fails, and its bytes are lost
    files.fail("append", nth=3, error=ENOSPC)   # the third append from now has no disk space
    files.lose_power_before(17)                 # the 17th operation from now raises PowerLost
    files.lose_power(torn=Random(seed))         # synced data is left, and of the rest a random part
    files.flip_bit("/data/t-0/0.log", byte=80)

This module injects the faults; what survives a power loss is in `disk.py`.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from random import Random
from typing import Self
from weakref import WeakSet

from headrace.model.errors import DiskFull, MissingFile, ResourceShortage, StorageError
from headrace.storage.io.file_system import Bytes, File, FileSystem, room_of
from headrace.testing.simulation.disk import Folder, Inode, SimDisk

NO_SPACE_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
# As in MemoryFiles: unlimited, unless the test sets a capacity.
UNBOUNDED_BYTES = 1 << 60

OPERATIONS = frozenset(
    {
        "open",
        "append",
        "read",
        "truncate",
        "preallocate_tail",
        "sync",
        "rename",
        "remove",
        "make_dir",
        "remove_tree",
        "sync_dir",
        "list",
    }
)


class PowerLost(Exception):
    """The host lost power here. Not a StorageError on purpose: no code handles its own power loss."""


class ShortWrite(StorageError):
    """Half of an append is in the file, behind its end; neither the rest nor the undo could be written."""


@dataclass(slots=True)
class Fault:
    operation: str
    path: str
    countdown: int
    error: int
    sticks: bool


class SimFile(File):
    """One open file. Invalid after a power loss, as the process that had it open has ended."""

    def __init__(self, files: "SimFiles", inode: Inode, path: str) -> None:
        self._files = files
        self._inode = inode
        self._path = path
        self._boot = files.boots
        self.size = inode.size
        self.preallocated_end = 0
        files.handles.add(self)

    @property
    def path(self) -> str:
        """The file's name when it was opened."""
        return self._path

    @property
    def is_alive(self) -> bool:
        """Returns whether the process that opened the file still runs."""
        return self._boot == self._files.boots

    def append(self, data: Bytes) -> None:
        try:
            self._reach("append")
        except ShortWrite:
            self._inode.write(memoryview(data)[: len(data) // 2], self.size)
            raise
        self._files.reserve(self.size + len(data) - max(self.size, self.preallocated_end), self._path)
        self._inode.write(data, self.size)
        self._inode.modified_ms = self._files.wall_ms()
        self.size += len(data)

    def read(self, position: int, length: int) -> bytes:
        self._reach("read")
        if self.preallocated_end > self.size:
            length = max(0, min(length, self.size - position))
        return self._inode.read(position, length)

    def truncate(self, size: int) -> None:
        self._reach("truncate")
        self._inode.truncate(size)
        self._inode.modified_ms = self._files.wall_ms()
        self.size, self.preallocated_end = size, 0

    def preallocate_tail(self, end: int) -> None:
        start = max(self.size, self.preallocated_end)
        if end <= start:
            return
        with suppress(StorageError):
            self._reach("preallocate_tail")
            self._files.reserve(end - start, self._path)
            self._inode.write(room_of(end - start), start)
            self.preallocated_end = end

    def trim_preallocation(self) -> bool:
        if self.preallocated_end <= self.size:
            return False
        self.truncate(self.size)
        return True

    def sync(self) -> None:
        try:
            self._reach("sync")
        except StorageError:
            self._inode.fail_sync()
            raise
        self._inode.sync()

    def write_again(self) -> None:
        self._reach("append")
        self._inode.write(self._inode.read(0, self.size), 0)

    def modified_ms(self) -> int:
        return self._inode.modified_ms

    def fileno(self) -> int:
        return self._inode.descriptor

    def close(self) -> None:
        """Does nothing: the descriptor belongs to the disk, and other handles of the file use it too."""

    def _reach(self, operation: str) -> None:
        if self._boot != self._files.boots:
            raise PowerLost(f"{self._path} was open when the power went")
        self._files.reach(operation, self._path)


class SimFiles(FileSystem):
    """A file system in memory whose operations can fail, and which tracks what would survive a power loss."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes  # may be changed at any time: a disk fills up, or is enlarged
        self.operations: list[tuple[str, str]] = []  # every operation so far with its path, to enumerate crash points
        self.watch_syncs: Callable[[str], None] | None = None  # called with the path before each sync
        self.disk_id = "disk"  # a copy of this disk gets another id
        self.wall_ms: Callable[[], int] = lambda: 0  # the clock for modification times
        self.handles: WeakSet[SimFile] = WeakSet()  # open files; unreferenced ones are closed
        self.boots = 0  # incremented with every power loss: files that were open before are invalid
        self._power_cuts = 0
        self._disk = SimDisk()
        self._faults: list[Fault] = []
        self._power_left: int | None = None

    # --- fault injection ---

    def fail(
        self, operation: str, *, path: str = "*", nth: int = 1, error: int = errno.EIO, sticks: bool = False
    ) -> None:
        """Makes the nth such operation from now on paths that match `path` fail; with `sticks`, each later one too."""
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}; there are {', '.join(sorted(OPERATIONS))}")
        if nth < 1:
            raise ValueError("the first operation is number 1")
        self._faults.append(Fault(operation, path, nth, error, sticks))

    def heal(self) -> None:
        """Clears all injected faults. Data that they destroyed stays lost."""
        self._faults.clear()
        self._power_left = None

    def lose_power_before(self, nth: int) -> None:
        """Makes the nth operation from now raise PowerLost without being executed, and all later ones."""
        self._power_left = nth - 1

    def lose_power(self, torn: Random | None = None) -> None:
        """Simulates a power loss and restart: synced data is left; with `torn`, a random part of the rest."""
        self._disk.lose_power(torn)
        self._power_left = None
        self.boots += 1
        self._power_cuts += 1

    def flip_bit(self, path: str, *, byte: int, bit: int = 0) -> None:
        """Flips a bit silently."""
        self._inode(path).flip_bit(byte, bit)

    def reach(self, operation: str, path: str) -> None:
        """Called at the start of every operation. Raises the fault that is injected for it."""
        if self._power_left is not None:
            if self._power_left == 0:
                raise PowerLost(f"before {operation} {path}")
            self._power_left -= 1
        self.operations.append((operation, path))
        if self.watch_syncs is not None and operation in ("sync", "sync_dir"):
            self.watch_syncs(path)
        for fault in self._faults:
            if fault.operation != operation or not fnmatch(path, fault.path):
                continue
            fault.countdown -= 1
            if fault.countdown == 0 or (fault.sticks and fault.countdown < 0):
                raise _as_storage_error(fault.error, operation, path)

    def reserve(self, length: int, path: str) -> None:
        """Raises DiskFull, before anything is written, if there is no space for `length` more bytes."""
        if length > self.free_bytes(path):
            raise _as_storage_error(errno.ENOSPC, "append", path)

    # --- FileSystem ---

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.reach("open", path)
        if create and self._disk.find(path) is None:
            folder, name = self._disk.place(path)
            self._disk.change((folder, name, self._disk.new_inode(name)))
        return SimFile(self, self._inode(path), path)

    def read(self, path: str) -> bytes:
        self.reach("read", path)
        inode = self._inode(path)
        return inode.read(0, inode.size)

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replaces a file in the five steps of a real disk, so that a crash can be injected before each of them."""
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.append(data)
        if sync:
            file.sync()
        self.rename(temporary, path)
        if sync:
            self.sync_dir(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        self.reach("rename", old)
        node = self._disk.find(old)
        if node is None:
            raise MissingFile(f"{old}: no such file on the simulated disk")
        old_folder, old_name = self._disk.place(old)
        new_folder, new_name = self._disk.place(new)
        self._disk.change((old_folder, old_name, None), (new_folder, new_name, node))

    def remove(self, path: str) -> None:
        self.reach("remove", path)
        self._inode(path)
        self._disk.change((*self._disk.place(path), None))

    def exists(self, path: str) -> bool:
        return self._disk.find(path) is not None

    def list(self, directory: str) -> list[str]:
        self.reach("list", directory)
        return sorted(self._folder(directory).entries)

    def make_dir(self, path: str) -> None:
        self.reach("make_dir", path)
        for end in [at for at, char in enumerate(path) if char == "/" and at > 0] + [len(path)]:
            if self._disk.find(path[:end]) is None:
                self._disk.change((*self._disk.place(path[:end]), Folder()))

    def remove_tree(self, path: str) -> None:
        """Removes a tree name by name, as on a real disk: a crash in between leaves the rest."""
        for name, node in list(self._folder(path).entries.items()):
            if isinstance(node, Folder):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.reach("remove_tree", path)
        self._disk.change((*self._disk.place(path), None))

    def sync_dir(self, path: str) -> None:
        self.reach("sync_dir", path)
        self._disk.sync_names(self._folder(path))

    def boot_id(self) -> str:
        return f"boot {self._power_cuts}"

    def identity(self, path: str) -> str:
        return f"{self.disk_id}:{path}"

    def free_bytes(self, path: str) -> int:
        if self.capacity_bytes is None:
            return UNBOUNDED_BYTES
        return max(0, self.capacity_bytes - self._disk.used_bytes())

    def total_bytes(self, path: str) -> int:
        return UNBOUNDED_BYTES if self.capacity_bytes is None else self.capacity_bytes

    def used_bytes(self) -> int:
        """Returns the bytes of all files."""
        return self._disk.used_bytes()

    def close(self) -> None:
        """Releases the memory. No file of this disk can be used afterwards."""
        self._disk.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _inode(self, path: str) -> Inode:
        node = self._disk.find(path)
        if not isinstance(node, Inode):
            raise MissingFile(f"{path}: no such file on the simulated disk")
        return node

    def _folder(self, path: str) -> Folder:
        node = self._disk.find(path)
        if not isinstance(node, Folder):
            raise MissingFile(f"{path}: no such directory on the simulated disk")
        return node


def _as_storage_error(error: int, operation: str, path: str) -> StorageError:
    text = f"{operation} {path}: {os.strerror(error)} (simulated)"
    if error in NO_RESOURCES and operation != "sync":
        return ResourceShortage(text)  # in `sync_dir`: the open before the sync failed
    if operation in ("sync", "sync_dir"):
        return StorageError(text)  # as on a real disk: unsynced data is lost for any reason of the failure
    if error == errno.ENOENT:
        return MissingFile(text)
    return DiskFull(text) if error in NO_SPACE_ERRNOS else StorageError(text)
