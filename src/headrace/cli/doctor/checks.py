"""Checks of `headrace doctor`: each returns a status, the value that it found, and a remedy.

The constants are the thresholds. The disk check writes an unnamed temporary file to the data directory.
"""

import importlib
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.cli.common.output import human_bytes, plural
from headrace.config.settings import Listener, Settings
from headrace.model.errors import CorruptLog, InvalidConfig
from headrace.storage.directory.checkpoint_files import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    clean_shutdown_epoch,
    read_meta_properties,
    read_offsets,
)
from headrace.storage.io.file_system import OsFileSystem
from headrace.storage.io.io_uring import IoUringFsync

PYTHON_MIN = (3, 11)
KERNEL_MIN = (3, 17)  # memfd_create, which memory mode requires
OPEN_FILES_MIN = 1024  # each partition needs a file and each client a socket; less is not enough for a small node
OPEN_FILES_WANTED = 65_536
MEMORY_WANTED = 256 * 1024 * 1024
FREE_SPACE_MIN = 64 * 1024 * 1024  # the broker's reserve, which allows recovery from a full disk
FREE_SPACE_WANTED = 1024 * 1024 * 1024  # one full segment of the default size
SYNC_ROUNDS = 50
SYNC_P99_SLOW_MS = 50.0  # above it, acks=all takes longer than clients expect
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
_LIBRARIES = ("crc32c", "lz4.frame", "zstandard", "cramjam", "kio", "confluent_kafka")


class Finding(NamedTuple):
    name: str
    status: str  # ok, warning or problem
    found: str
    advice: str = ""


def python_version() -> Finding:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info < PYTHON_MIN:
        return Finding("Python", "problem", found, "install Python 3.11 or newer")
    return Finding("Python", "ok", found)


def bytecode_cache() -> Finding:
    if sys.dont_write_bytecode:
        advice = "unset PYTHONDONTWRITEBYTECODE, or run `python -m compileall` on the installed package once"
        return Finding("bytecode cache", "warning", "off: every start compiles all modules", advice)
    return Finding("bytecode cache", "ok", "on")


def native_libraries() -> Finding:
    missing = []
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name.partition(".")[0])
    if missing:
        return Finding("libraries", "problem", f"missing: {', '.join(missing)}", "pip install --upgrade headrace")
    return Finding("libraries", "ok", f"all {len(_LIBRARIES)} load")


def etcd(settings: Settings) -> Finding:
    """Checks the etcd program of a node that runs an etcd member."""
    import asyncio

    from headrace.app.etcd.member import check_program

    try:
        asyncio.run(check_program(settings.etcd.program))
    except InvalidConfig as error:
        return Finding("etcd", "problem", f"{settings.etcd.program} cannot be used", str(error))
    return Finding("etcd", "ok", f"{shutil.which(settings.etcd.program)}")


def kernel() -> Finding:
    found = f"{platform.system()} {platform.release()}"
    numbers = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if platform.system() != "Linux" or numbers < KERNEL_MIN:
        return Finding("kernel", "problem", found, "run on Linux 3.17 or newer")
    return Finding("kernel", "ok", found)


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} (hard limit {hard:,})"
    advice = f"ulimit -n {min(hard, OPEN_FILES_WANTED)} before the start"
    if hard <= soft:
        advice = f"raise the hard limit, e.g. LimitNOFILE={OPEN_FILES_WANTED} in the systemd unit"
    if soft < OPEN_FILES_MIN:
        return Finding("open files", "problem", found, advice)
    if soft < OPEN_FILES_WANTED:
        return Finding("open files", "warning", found, f"{advice}, for thousands of partitions or clients")
    return Finding("open files", "ok", found)


def memory() -> Finding:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    found = f"{human_bytes(available)} available"
    if available < MEMORY_WANTED:
        return Finding("memory", "warning", found, f"keep {human_bytes(MEMORY_WANTED)} free for a node")
    return Finding("memory", "ok", found)


def port(listener: Listener) -> Finding:
    name = f"port {listener.port}"
    if listener.port == 0:
        return Finding(name, "ok", "any free port")
    host = listener.host or "localhost"
    try:
        addresses = socket.getaddrinfo(host, listener.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Finding(name, "problem", f"{host}: {error.strerror or error}", "use an address of this host")
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if family == socket.AF_INET6 and len(addresses) > 1:
                    continue  # the host has no IPv6: the broker listens on IPv4 only
                advice = f"stop the process that uses it (ss -ltnp), or use another: --listen {host}:PORT"
                return Finding(name, "problem", f"{host}: {error.strerror}", advice)
    return Finding(name, "ok", f"free on {host}")


def writable(directory: Path) -> Finding:
    """Checks that a node can write to the directory, or create it in its nearest existing parent."""
    there = _nearest_existing(directory)
    if not there.is_dir():
        return Finding("data directory", "problem", f"{there} is a file", "use another with --data-dir")
    if not os.access(there, os.W_OK | os.X_OK):
        advice = f"grant this user write permission on {there}, or use another directory with --data-dir"
        return Finding("data directory", "problem", f"{directory} is not writable", advice)
    return Finding("data directory", "ok", f"{directory}" if there == directory else f"{directory} (new)")


def file_system(directory: Path) -> Finding:
    kind = _file_system_of(_nearest_existing(directory))
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            "file system", "warning", kind, "use a local disk: fsync on network file systems is slow or unreliable"
        )
    if kind == "tmpfs":
        return Finding("file system", "warning", "tmpfs: data is lost on reboot", "use a disk, or --memory")
    return Finding("file system", "ok", kind)


def free_space(directory: Path) -> Finding:
    free = shutil.disk_usage(_nearest_existing(directory)).free
    found = f"{human_bytes(free)} free"
    if free <= FREE_SPACE_MIN:
        advice = f"free disk space: below {human_bytes(FREE_SPACE_MIN)} Produce requests are rejected"
        return Finding("disk space", "problem", found, advice)
    if free < FREE_SPACE_WANTED:
        return Finding("disk space", "warning", found, "free disk space, or lower retention and segment.bytes")
    return Finding("disk space", "ok", found)


def sync_latency(directory: Path) -> Finding:
    """Measures appends of 4 KiB with fdatasync, like a group commit."""
    times_ms = []
    with tempfile.TemporaryFile(dir=_nearest_existing(directory)) as file:
        for _ in range(SYNC_ROUNDS):
            began = time.perf_counter()
            os.write(file.fileno(), b"\0" * 4096)
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - began) * 1000)
    times_ms.sort()
    p50, p99 = times_ms[len(times_ms) // 2], times_ms[int(len(times_ms) * 0.99)]
    found = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
    if p99 > SYNC_P99_SLOW_MS:
        advice = "acks=all waits for fsync: use a faster disk, or flush.policy=replicated with several replicas"
        return Finding("disk sync", "warning", found, advice)
    return Finding("disk sync", "ok", found)


def kernel_syncs(settings: Settings) -> Finding:
    """Checks whether the logs are synced through io_uring or by the thread pool."""
    if not settings.flag("log.flush.io.uring.enable"):
        return Finding("io_uring", "ok", "disabled; the thread pool syncs the logs")
    try:
        IoUringFsync().close()
    except OSError as error:
        advice = "for lower latency, allow io_uring (kernel.io_uring_disabled, seccomp profile)"
        found = f"unavailable ({error.strerror or error}); the thread pool syncs the logs"
        return Finding("io_uring", "ok", found, advice)
    return Finding("io_uring", "ok", "available; the logs are synced asynchronously")


def data_directory(directory: Path, settings: Settings) -> Iterator[Finding]:
    """Checks the checkpoint files and the node ID in a data directory that exists."""
    if not directory.is_dir():
        return
    files = OsFileSystem()
    try:
        meta = read_meta_properties(files, str(directory))
        for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS):
            read_offsets(files, f"{directory}/{name}")
    except CorruptLog as error:
        advice = "back up the directory, then delete the file: the next start rebuilds it from the logs"
        yield Finding("data files", "problem", str(error), advice)
        return
    if meta is None:
        yield Finding("data files", "ok", "none yet")
        return
    if meta.node_id != settings.node_id:
        found = f"belong to node {meta.node_id}, the configuration has {settings.node_id}"
        yield Finding("data files", "problem", found, f"--set node.id={meta.node_id}, or another --data-dir")
        return
    partitions = sum(1 for entry in directory.iterdir() if entry.is_dir() and any(entry.glob("*.log")))
    clean = clean_shutdown_epoch(files, str(directory)) is not None
    state = "stopped cleanly" if clean else "running, or not stopped cleanly: the next start runs log recovery"
    yield Finding("data files", "ok", f"{plural(partitions, 'partition')}, {state}")


def _nearest_existing(directory: Path) -> Path:
    there = directory.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return there if there != directory.absolute() else directory


def _file_system_of(directory: Path) -> str:
    best, kind = "", "unknown"
    place = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, mounted_kind, *_ = line.split()
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, mounted_kind
    return kind
