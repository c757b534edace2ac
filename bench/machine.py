"""The facts without which a figure means nothing: the machine, its disk, the versions, the load beside us."""

import os
import platform
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from bench import tools

_SYNCS = 50
_SYNC_BYTES = 4096


def facts(work: Path, *, repeat: int, scale: str) -> dict[str, str]:
    """In the order in which they are printed."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "data directories": f"{_file_system(work)}; 4 KiB write + fdatasync {_sync_ms(work):.2f} ms (median)",
        "load before the run": f"{os.getloadavg()[0]:.2f} (1 minute)",
        "headrace": f"{_package('headrace')} on Python {platform.python_version()}",
        "Apache Kafka": f"{tools.KAFKA_VERSION} on {tools.version_line(['java', '-version'])}",
        "clients": f"librdkafka {_librdkafka()} (load.c), Kafka's tools {tools.KAFKA_VERSION}",
        "scale": f"{scale}; rounds: {repeat}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _librdkafka() -> str:
    header = Path("/usr/include/librdkafka/rdkafka.h")
    if not header.exists():
        return "not installed"
    for line in header.read_text().splitlines():
        if line.startswith("#define RD_KAFKA_VERSION"):
            number = line.split()[2]
            return ".".join(str(int(number[i : i + 2], 16)) for i in (2, 4, 6))
    return "unknown"


def _file_system(path: Path) -> str:
    """The type of the file system that holds the path: on tmpfs an fsync would cost nothing."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, type_, *_ = line.split()
        if str(path.resolve()).startswith(mount.rstrip("/") + "/") and len(mount) > len(best):
            best, kind = mount, type_
    return kind


def _sync_ms(directory: Path) -> float:
    times = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(_SYNCS):
            start = time.perf_counter()
            os.write(file.fileno(), b"s" * _SYNC_BYTES)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return median(times) * 1e3


def command_line() -> str:
    return " ".join(["python -m bench", *sys.argv[1:]])
