"""File system interface. Storage accesses disks only through it, so that tests can use memory or a faulty disk.

`OsFileSystem`, for a real file system, is here; `MemoryFiles` is in `memory_file_system.py`; a file system with
injected faults is in `headrace.testing`.
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
# Byte that fills a preallocated tail. Read as the length of a batch, it exceeds any preallocated tail: Kafka's tools
# and other readers treat the tail as a partial batch, with which a log may end. Zeros are an invalid length, an error
# to them.
PREALLOCATION_FILL = 0x01
BOOT_ID = "/proc/sys/kernel/random/boot_id"  # changes with each boot of Linux


REWRITE_BYTES = 1024 * 1024  # per read and write: bounds the memory


def room_of(length: int) -> bytes:
    return bytes([PREALLOCATION_FILL]) * length


@runtime_checkable
class File(Protocol):
    """An open file that grows at its end.

    `size` is the length of what was appended; reading it needs no system call.
    """

    size: int
    preallocated_end: int  # end of the preallocated tail; there is no tail unless it is above `size`

    def append(self, data: Bytes) -> None:
        """Appends all of `data`, or raises StorageError and leaves the file unchanged."""

    def read(self, position: int, length: int) -> bytes:
        """Returns `length` bytes, or fewer at the end of the file."""

    def truncate(self, size: int) -> None: ...

    def preallocate_tail(self, end: int) -> None:
        """Extends the file up to `end` with PREALLOCATION_FILL, or as far as the free disk space allows."""

    def trim_preallocation(self) -> bool:
        """Truncates the preallocated tail. Returns whether the file has changed and needs a sync."""

    def sync(self) -> None:
        """Blocks until what was appended is on disk. May be called from another thread."""

    def write_again(self) -> None:
        """Rewrites the content after a failed sync, so that a later sync writes it to disk."""

    def modified_ms(self) -> int:
        """Returns the wall-clock time of the last write."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...

    def read(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replaces the whole content atomically.

        After a crash the file has the old or the new content, never a mixture.

        Without `sync`, the content after a power loss is undefined until the file and its directory are synced.
        """

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def exists(self, path: str) -> bool:
        """Returns True also for a symbolic link whose target is missing: its disk may not be mounted.

        Raises StorageError if the file system reports an error: a missing index would mean that no transaction was
        aborted.
        """

    def list(self, directory: str) -> list[str]: ...

    def make_dir(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Returns the size of the file system, used or not."""

    def boot_id(self) -> str:
        """Returns an id that changes whenever unsynced writes may have been lost; empty if that cannot be determined.

        Writes of a crashed process remain in the page cache. Only a reboot of the host loses them.
        """

    def identity(self, path: str) -> str:
        """Returns an id that distinguishes a file of this host from every copy of it; empty if it is unknown."""


class Durable(Protocol):
    """Something that can be synced to disk."""

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
    """A directory with an entry that may not be on disk yet."""

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
    """Returns a StorageError, never DiskFull.

    The kernel has dropped the pages, so that a retry cannot write them to disk.
    """
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
    """A File on a descriptor of the operating system."""

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
        """Completes a short write. The next write continues, or raises the reason why it cannot."""
        while written < len(data):
            count = os.pwrite(self._descriptor, data[written:], position + written)
            if not count:
                raise OSError(errno.EIO, "the file system takes no more bytes")
            written += count

    def _forget_partial_write(self) -> None:
        # Recovery would truncate the partial batch. Truncating it now keeps `size` and the file consistent.
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
        """Completes a short read within the file. Recovery would treat it as the end of the log and truncate there."""
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
            # If the disk has a fault, the next append reports it.
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
        # The kernel releases the descriptor also if close reports an error: the number may be reused for another file.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _disk_errors(self.path):
                os.close(descriptor)

    def __del__(self) -> None:
        # A response that is being sent may still read a segment that retention has removed: the last reference closes
        # the file.
        with suppress(StorageError):
            OsFile.close(self)


class OsFileSystem:
    """The host's file system. A new name is durable once its directory has been synced."""

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
                    os.fsync(file.fileno())  # may be retried, because the retry writes the whole file again
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
        """Removes a directory tree. Follows no symbolic link: a link at `path` is removed itself."""
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
    """Writes and syncs a file whose name is not in use yet. May run in a thread."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.append(data)
        file.sync()
    finally:
        file.close()
