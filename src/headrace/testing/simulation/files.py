"""A disk with faults to order: the Files port of `headrace.storage.io.file_system`, in memory, to test what survives.

    files = SimFiles()
    files.fail("sync", path="*.log")            # the next fsync of a log fails, its bytes are gone for good
    files.fail("append", nth=3, error=ENOSPC)   # the third append from now finds no room
    files.lose_power_before(17)                 # PowerLost comes out of the 17th operation from now
    files.lose_power(torn=Random(seed))         # what was synced is there; of the rest, a random part
    files.flip_bit("/data/t-0/0.log", byte=80)

It decides which operation fails and how; what a disk remembers is in `disk.py`.
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
# As MemoryFiles: "plenty", unless the test gives the disk a size.
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
    """The machine stopped here. No storage error on purpose: nobody handles having been switched off."""


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
    """One open file. Dead after a power cut: what a process held open, nobody holds any more."""

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
        """Its name when it was opened."""
        return self._path

    @property
    def is_alive(self) -> bool:
        """Whether the process that opened it still runs."""
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
        """The descriptor belongs to the disk: other handles of the same file read through it too."""

    def _reach(self, operation: str) -> None:
        if self._boot != self._files.boots:
            raise PowerLost(f"{self._path} was open when the power went")
        self._files.reach(operation, self._path)


class SimFiles(FileSystem):
    """A file system whose every operation can fail, and which knows what a power cut would leave."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes  # may be changed at any time: a disk fills up, a disk is enlarged
        self.operations: list[tuple[str, str]] = []  # every operation reached, with its path: to enumerate crashes
        self.watch_syncs: Callable[[str], None] | None = None  # called with the path of each sync, before it happens
        self.disk_id = "disk"  # a copy of this disk has another one
        self.wall_ms: Callable[[], int] = lambda: 0  # the clock that modification times are taken from
        self.handles: WeakSet[SimFile] = WeakSet()  # open files; what nothing refers to any more is closed
        self.boots = 0  # lives of processes: files that an earlier one has open are dead
        self._power_cuts = 0
        self._disk = SimDisk()
        self._faults: list[Fault] = []
        self._power_left: int | None = None

    # --- faults to order ---

    def fail(
        self, operation: str, *, path: str = "*", nth: int = 1, error: int = errno.EIO, sticks: bool = False
    ) -> None:
        """The nth such operation from now on paths like `path` fails; with `sticks`, each after it too."""
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation!r}; there are {', '.join(sorted(OPERATIONS))}")
        if nth < 1:
            raise ValueError("the first operation is number 1")
        self._faults.append(Fault(operation, path, nth, error, sticks))

    def heal(self) -> None:
        """No fault is ordered any more. What they destroyed stays destroyed."""
        self._faults.clear()
        self._power_left = None

    def lose_power_before(self, nth: int) -> None:
        """PowerLost comes out of the nth operation from now, which has not happened then, and all after."""
        self._power_left = nth - 1

    def lose_power(self, torn: Random | None = None) -> None:
        """Power goes and comes back: what was synced is there; with `torn`, by chance, more of the rest."""
        self._disk.lose_power(torn)
        self._power_left = None
        self.boots += 1
        self._power_cuts += 1

    def flip_bit(self, path: str, *, byte: int, bit: int = 0) -> None:
        """The disk forgets a bit without saying so."""
        self._inode(path).flip_bit(byte, bit)

    def reach(self, operation: str, path: str) -> None:
        """Called at the start of every operation: raises what was ordered for it."""
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
        """The room for so many bytes more, or DiskFull and nothing written."""
        if length > self.free_bytes(path):
            raise _as_storage_error(errno.ENOSPC, "append", path)

    # --- the Files port ---

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
        """The same five steps as on a real disk, so that a crash can be ordered before each of them."""
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
        """Name by name, as on a real disk: a crash half-way leaves the rest."""
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
        """Of all files."""
        return self._disk.used_bytes()

    def close(self) -> None:
        """Let the memory go; no file of this disk can be used afterwards."""
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
        return ResourceShortage(text)  # in `sync_dir`, of the open before the sync
    if operation in ("sync", "sync_dir"):
        return StorageError(text)  # as on a real disk: whatever the reason, what was not synced is lost
    if error == errno.ENOENT:
        return MissingFile(text)
    return DiskFull(text) if error in NO_SPACE_ERRNOS else StorageError(text)
