"""What the kernel knows of a process and its descendants: CPU time, memory, number. Reads /proc only."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

_PROC = Path("/proc")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Fields of /proc/<pid>/stat, counted after the closing bracket of the command's name.
_PARENT, _USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM, _RESIDENT = 1, 11, 12, 13, 14, 21


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _family(pid: int) -> dict[int, list[str]]:
    """The stat fields of the process and of all its living descendants, by their ids."""
    stats = {int(entry): stat for entry in os.listdir(_PROC) if entry.isdigit() and (stat := _stat(int(entry)))}
    family, todo = {}, [pid]
    while todo:
        member = todo.pop()
        if member in stats:
            family[member] = stats[member]
            todo += [child for child, stat in stats.items() if int(stat[_PARENT]) == member]
    return family


def cpu_seconds(*pids: int) -> float:
    """CPU time of all threads of the processes and their descendants, ended and reaped ones included."""
    fields = (_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM)
    return sum(int(stat[field]) for pid in pids for stat in _family(pid).values() for field in fields) / _TICKS_A_SECOND


def resident_mib(*pids: int) -> float:
    """Resident memory of the processes and their descendants."""
    return sum(int(stat[_RESIDENT]) for pid in pids for stat in _family(pid).values()) * _PAGE_BYTES / 2**20


def proportional_mib(*pids: int) -> float:
    """The same, with pages that several processes share counted once: what they take of the machine together."""
    rollups = [(_PROC / str(member) / "smaps_rollup").read_text() for pid in pids for member in _family(pid)]
    return sum(int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith("Pss:")) / 1024


def children(pid: int) -> int:
    return len(_family(pid)) - 1


def idle_cpu_percent(pids: Sequence[int], seconds: float) -> float:
    """The share of one core that the processes take together while nobody asks them anything."""
    before, start = cpu_seconds(*pids), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(*pids) - before) / (time.monotonic() - start)


class CpuMeter:
    """CPU seconds that processes spend while the context is open."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.seconds = 0.0

    def __enter__(self) -> "CpuMeter":
        self.seconds = -cpu_seconds(*self._pids)
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += cpu_seconds(*self._pids)
