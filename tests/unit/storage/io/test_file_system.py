"""The real file layer: system calls that fail, are interrupted, or read and write less than was asked for."""

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.replica.flush_backends import _error
from headrace.model.errors import DiskFull, MissingFile, StorageError
from headrace.storage.directory.directory_lock import DirectoryLock
from headrace.storage.io.file_system import OsFile, OsFileSystem
from headrace.testing import SimFiles

ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINTR, errno.ENOENT, errno.EROFS, errno.EMFILE]
SYNCS = {"fsync", "fdatasync"}
Call = Callable[[Path], object]


def opened(path: Path) -> OsFile:
    file = OsFileSystem().open(str(path / "file"), create=True)
    assert isinstance(file, OsFile)
    return file


def with_content(path: Path) -> OsFile:
    file = opened(path)
    file.append(b"content")
    return file


# Each wrapper with each system call that it makes.
CALLS: dict[str, tuple[str, Call, Callable[[object], object]]] = {
    "open": ("open", lambda path: path, lambda path: OsFileSystem().open(f"{path}/new", create=True)),
    "open, size": ("fstat", lambda path: path, lambda path: OsFileSystem().open(f"{path}/new", create=True)),
    "append": ("pwrite", opened, lambda file: file.append(b"more")),  # type: ignore[attr-defined]
    "read": ("pread", with_content, lambda file: file.read(0, 9)),  # type: ignore[attr-defined]
    "truncate": ("ftruncate", with_content, lambda file: file.truncate(1)),  # type: ignore[attr-defined]
    "sync": ("fdatasync", with_content, lambda file: file.sync()),  # type: ignore[attr-defined]
    "write again, read": ("pread", with_content, lambda file: file.write_again()),  # type: ignore[attr-defined]
    "write again": ("pwrite", with_content, lambda file: file.write_again()),  # type: ignore[attr-defined]
    "modified": ("fstat", with_content, lambda file: file.modified_ms()),  # type: ignore[attr-defined]
    "close": ("close", with_content, lambda file: file.close()),  # type: ignore[attr-defined]
    "replace, sync": ("fsync", lambda path: path, lambda path: OsFileSystem().replace(f"{path}/new", b"new")),
    "replace, rename": ("rename", lambda path: path, lambda path: OsFileSystem().replace(f"{path}/new", b"new")),
    "rename": ("rename", lambda path: path, lambda path: OsFileSystem().rename(f"{path}/a", f"{path}/b")),
    "remove": ("unlink", lambda path: path, lambda path: OsFileSystem().remove(f"{path}/a")),
    "exists": ("lstat", lambda path: path, lambda path: OsFileSystem().exists(f"{path}/a")),
    "list": ("listdir", lambda path: path, lambda path: OsFileSystem().list(str(path))),
    "make_dir": ("mkdir", lambda path: path, lambda path: OsFileSystem().make_dir(f"{path}/new")),
    "remove_tree": ("rmdir", lambda path: path, lambda path: OsFileSystem().remove_tree(str(path))),
    "remove_tree, file": ("unlink", with_content, lambda file: OsFileSystem().remove_tree(os.path.dirname(file.path))),  # type: ignore[attr-defined]
    "sync_dir, open": ("open", lambda path: path, lambda path: OsFileSystem().sync_dir(str(path))),
    "sync_dir": ("fsync", lambda path: path, lambda path: OsFileSystem().sync_dir(str(path))),
    "sync_dir, close": ("close", lambda path: path, lambda path: OsFileSystem().sync_dir(str(path))),
    "free_bytes": ("statvfs", lambda path: path, lambda path: OsFileSystem().free_bytes(str(path))),
    "total_bytes": ("statvfs", lambda path: path, lambda path: OsFileSystem().total_bytes(str(path))),
    "lock, directory": ("makedirs", lambda path: path, lambda path: DirectoryLock(str(path))),
    "lock, open": ("open", lambda path: path, lambda path: DirectoryLock(str(path))),
}


# That a name does not exist is an answer, not a failure.
FAILURES = [(name, error) for name in CALLS for error in ERRORS if (name, error) != ("exists", errno.ENOENT)]


@pytest.mark.parametrize(("name", "error"), FAILURES, ids=lambda one: errno.errorcode.get(one, one))
def test_failed_system_call_is_a_storage_error(
    name: str, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, before, work = CALLS[name]
    subject = before(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(StorageError) as raised:
            work(subject)
    is_full = error in (errno.ENOSPC, errno.EDQUOT)
    if call in SYNCS and name != "replace, sync":
        assert not isinstance(raised.value, DiskFull), "the kernel has dropped the pages"
    else:
        assert isinstance(raised.value, DiskFull) == is_full
    if call not in {*SYNCS, "pwrite"}:
        assert isinstance(raised.value, MissingFile) == (error == errno.ENOENT)


def test_lock_that_cannot_be_taken_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", fail)
        with pytest.raises(StorageError, match="No locks available"):
            DirectoryLock(str(tmp_path))
    first = DirectoryLock(str(tmp_path))
    with pytest.raises(StorageError, match="in use by another process"):
        DirectoryLock(str(tmp_path))
    first.release()


def test_path_below_a_file_does_not_exist(tmp_path: Path) -> None:
    with_content(tmp_path).close()
    assert not OsFileSystem().exists(f"{tmp_path}/file/below")


def test_sync_by_the_kernel_that_finds_no_space_is_not_disk_full(tmp_path: Path) -> None:
    file = with_content(tmp_path)
    failure = _error(file, file.fileno(), -errno.ENOSPC)
    assert isinstance(failure, StorageError)
    assert not isinstance(failure, DiskFull), "the kernel has dropped the pages"


def test_failed_close_closes_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has released the descriptor; the next file gets its number."""
    file = with_content(tmp_path)
    real_close = os.close

    def close(descriptor: int) -> None:
        real_close(descriptor)
        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close)
        with pytest.raises(StorageError):
            file.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    file.close()
    del file
    os.write(other, b"still open")
    os.close(other)


def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    file = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda descriptor, data, at: real(descriptor, bytes(data[:3]), at))
        file.append(b"a batch of some bytes")
        file.write_again()
    assert (file.size, file.read(0, 99)) == (21, b"a batch of some bytes")
    file.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_short_write_that_cannot_go_on_leaves_the_file_as_it_was(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.pwrite, [0]
    file = with_content(tmp_path)

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        calls[0] += 1
        if calls[0] > 1:
            raise OSError(error, os.strerror(error))
        return real(descriptor, bytes(data[:3]), at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", pwrite)
        with pytest.raises(StorageError):
            file.append(b"a batch")
    assert (tmp_path / "file").read_bytes() == b"content"
    file.append(b", and more")
    assert (tmp_path / "file").read_bytes() == b"content, and more"
    file.close()


def test_write_of_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(StorageError):
            file.append(b"a batch")
    file.close()


def test_short_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery takes the end of what it can read for the end of the file, and truncates the log there."""
    real = os.pread
    file = with_content(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", lambda descriptor, length, at: real(descriptor, min(length, 2), at))
        assert file.read(0, 7) == b"content"
        assert file.read(2, 99) == b"ntent"
        assert file.read(7, 1) == b""
    file.close()


def test_read_that_a_signal_interrupts_goes_on(tmp_path: Path) -> None:
    """Python repeats interrupted system calls (PEP 475): of a pipe, because those of a disk are not interrupted."""
    path, signals = tmp_path / "pipe", [0]
    os.mkfifo(path)

    def count(*_: object) -> None:
        signals[0] += 1

    def interrupt() -> None:
        for number in range(1, 4):
            signal.pthread_kill(reader, signal.SIGUSR1)
            while signals[0] < number:
                os.sched_yield()
        path.write_bytes(b"content")

    reader = threading.main_thread().ident
    assert reader is not None
    before = signal.signal(signal.SIGUSR1, count)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        assert OsFileSystem().read(str(path)) == b"content"
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert signals[0] == 3


def test_written_again_the_simulated_file_reaches_the_disk() -> None:
    with SimFiles() as files:
        file = files.open("/file", create=True)
        files.sync_dir("/")
        file.append(b"content")
        files.fail("sync")
        with pytest.raises(StorageError):
            file.sync()
        file.write_again()
        file.sync()
        files.lose_power()
        assert files.read("/file") == b"content"
