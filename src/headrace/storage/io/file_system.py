"""Files as a port: everything that storage asks of a disk, so that memory or a faulty disk can stand in.

OsFileSystem, on a real file system, is here; MemoryFiles in `memory_file_system.py`; one with faults to order is in
`headrace.testing`.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, runtime_checkable

from headrace.model.errors import DiskFull, MissingFile, ResourceShortage, StorageError

Bytes = bytes | bytearray | memoryview

NO_SPACE_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
# What room is filled with. Read as the length of a batch, it is more than any room has: so whoever reads a log, Kafka's
# tools among them, takes it for half a batch, with which a log may end. Zeros are no length, and an error to them.
PREALLOCATION_FILL = 0x01
BOOT_ID = "/proc/sys/kernel/random/boot_id"  # Linux makes a new one each time it starts


REWRITE_BYTES = 1024 * 1024  # a read and a write at a time: bounds the memory


def room_of(length: int) -> bytes:
    return bytes([PREALLOCATION_FILL]) * length


@runtime_checkable
class File(Protocol):
    """One open file that grows at its end. `size` counts what was appended, without asking the disk."""

    size: int
    preallocated_end: int  # up to where bytes wait to be overwritten; there is no room unless that is behind `size`

    def append(self, data: Bytes) -> None:
        """All of it, or an error and the file as it was."""

    def read(self, position: int, length: int) -> bytes:
        """Fewer bytes only at the end of the file."""

    def truncate(self, size: int) -> None: ...

    def preallocate_tail(self, end: int) -> None:
        """Have the file reach up to there, with PREALLOCATION_FILL behind what was appended; as far as the disk has
        room.
        """

    def trim_preallocation(self) -> bool:
        """The file ends where its content does. Whether that changed it: then it needs a sync."""

    def sync(self) -> None:
        """Returns when what was appended is on disk. May be called from another thread."""

    def write_again(self) -> None:
        """Writes the content over itself after a failed sync, so that a later sync brings it to disk."""

    def modified_ms(self) -> int:
        """When it was last written to, in wall-clock time."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...

    def read(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """The whole content at once: after a crash there is the old or the new, never a mixture.

        Without `sync`, what a power loss leaves is anybody's guess until the file and its directory are synced.
        """

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def exists(self, path: str) -> bool:
        """True also for a symbolic link whose target is missing: its disk may not be mounted.

        Raises StorageError if the disk cannot tell: a missing index means that nothing was aborted.
        """

    def list(self, directory: str) -> list[str]: ...

    def make_dir(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """The size of the file system, used or not."""

    def boot_id(self) -> str:
        """Another one whenever what was written and not synced may be lost; empty if nobody can tell.

        A process that is killed leaves what it wrote with the kernel. Only with the machine does that go.
        """

    def identity(self, path: str) -> str:
        """Tells a file of this host from every copy of it; empty if that is unknown."""


class Durable(Protocol):
    """Something that can be waited for until it is on disk."""

    def sync(self) -> None: ...


class FileSync:
    """A file that was replaced without a sync."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        file = self._files.open(self._path)
        file.sync()
        file.close()


class DirectorySync:
    """An entry in a directory that the disk may not know of yet."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory

    def sync(self) -> None:
        self._files.sync_dir(self._directory)


@contextmanager
def _disk_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_storage_error(error, path) from error


@contextmanager
def _sync_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_sync_error(error, path) from error


def as_sync_error(error: OSError, path: str) -> StorageError:
    """A sync that fails is never DiskFull: the kernel has dropped the pages, so no retry can bring them to disk."""
    return StorageError(f"cannot sync {path}: {error.strerror}")


def as_storage_error(error: OSError, path: str) -> StorageError:
    if error.errno in NO_SPACE_ERRNOS:
        return DiskFull(f"no disk space for {path}: free some space or lower the topic's retention")
    if error.errno in NO_RESOURCES:
        return ResourceShortage(f"{path}: {error.strerror}; raise the limit with `ulimit -n`, or free memory")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MissingFile(f"{path}: {error.strerror}")
    return StorageError(f"{path}: {error.strerror}")


class OsFile:
    """A File over a descriptor of the operating system."""

    __slots__ = ("_descriptor", "path", "preallocated_end", "size")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self.preallocated_end = 0

    def append(self, data: Bytes) -> None:
        length = len(data)
        try:
            written = os.pwrite(self._descriptor, data, self.size)
            if written < length:
                self._write_rest(memoryview(data), self.size, written)
        except OSError as error:
            self._forget_partial_write()
            if error.errno in NO_SPACE_ERRNOS:
                raise DiskFull(f"no disk space for {self.path}") from error
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from error
        self.size += length

    def _write_rest(self, data: memoryview, position: int, written: int) -> None:
        """After a short write: the next one goes on, or says why it cannot."""
        while written < len(data):
            count = os.pwrite(self._descriptor, data[written:], position + written)
            if not count:
                raise OSError(errno.EIO, "the file system takes no more bytes")
            written += count

    def _forget_partial_write(self) -> None:
        # Half a batch past the end would be cut at recovery; cutting it now keeps size and disk in agreement.
        self.preallocated_end = 0
        try:
            os.ftruncate(self._descriptor, self.size)
        except OSError as error:
            raise StorageError(f"cannot undo a failed write to {self.path}: {error.strerror}") from error

    def read(self, position: int, length: int) -> bytes:
        if self.preallocated_end > self.size:
            length = max(0, min(length, self.size - position))
        with _disk_errors(self.path):
            data = os.pread(self._descriptor, length, position)
            if len(data) < length and position + len(data) < self.size:
                return self._read_rest(data, position, length)
        return data

    def _read_rest(self, data: bytes, position: int, length: int) -> bytes:
        """After a short read within the file. It must not pass for the end, where recovery would truncate the log."""
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def truncate(self, size: int) -> None:
        with _disk_errors(self.path):
            os.ftruncate(self._descriptor, size)
        self.size, self.preallocated_end = size, 0

    def preallocate_tail(self, end: int) -> None:
        start = max(self.size, self.preallocated_end)
        if end > start:
            # Whatever is wrong with the disk, whoever appends will hear of it.
            with suppress(OSError):
                self.preallocated_end = start + os.pwrite(self._descriptor, room_of(end - start), start)

    def trim_preallocation(self) -> bool:
        if self.preallocated_end <= self.size:
            return False
        self.truncate(self.size)
        return True

    def sync(self) -> None:
        with _sync_errors(self.path):
            os.fdatasync(self._descriptor)

    def write_again(self) -> None:
        position = 0
        while data := self.read(position, min(REWRITE_BYTES, self.size - position)):
            with _disk_errors(self.path):
                self._write_rest(memoryview(data), position, 0)
            position += len(data)

    def modified_ms(self) -> int:
        with _disk_errors(self.path):
            return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        # The kernel releases the descriptor also where close reports an error: another file may get its number.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _disk_errors(self.path):
                os.close(descriptor)

    def __del__(self) -> None:
        # A reply on its way may still read a segment that retention has removed: the last user closes the file.
        with suppress(StorageError):
            OsFile.close(self)


class OsFileSystem:
    """The file system. A new name is durable once its directory has been synced."""

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with _disk_errors(path):
            return OsFile(os.open(path, flags, 0o644), path)

    def read(self, path: str) -> bytes:
        with _disk_errors(path), open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        with _disk_errors(path):
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())  # may be tried again: that writes the whole file again
            os.rename(temporary, path)
        if sync:
            self.sync_dir(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        with _disk_errors(old):
            os.rename(old, new)

    def remove(self, path: str) -> None:
        with _disk_errors(path):
            os.unlink(path)

    def exists(self, path: str) -> bool:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise as_storage_error(error, path) from error
        return True

    def list(self, directory: str) -> list[str]:
        with _disk_errors(directory):
            return sorted(os.listdir(directory))

    def make_dir(self, path: str) -> None:
        with _disk_errors(path):
            os.makedirs(path, exist_ok=True)

    def remove_tree(self, path: str) -> None:
        """Follows no symbolic link: one that stands in the place of the directory is removed itself."""
        with _disk_errors(path):
            if os.path.islink(path):
                os.unlink(path)
                return
            for folder, below, names in os.walk(path, topdown=False):
                links = [name for name in below if os.path.islink(os.path.join(folder, name))]
                for name in [*names, *links]:
                    os.unlink(os.path.join(folder, name))
                os.rmdir(folder)

    def sync_dir(self, path: str) -> None:
        with _disk_errors(path):
            descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _sync_errors(path):
                os.fsync(descriptor)
        finally:
            with _disk_errors(path):
                os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        with _disk_errors(path):
            state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        with _disk_errors(path):
            state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID) as file:
                return file.read().strip()
        except OSError:
            return ""

    def identity(self, path: str) -> str:
        try:
            state = os.stat(path)
        except OSError:
            return ""
        return f"{state.st_dev}:{state.st_ino}"


def write_synced(files: FileSystem, path: str, data: bytes) -> None:
    """Writes and syncs a file whose name does not count yet. May run in a thread."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.append(data)
        file.sync()
    finally:
        file.close()
