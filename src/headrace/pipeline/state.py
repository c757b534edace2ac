"""State directory of a pipeline on this host: checkpoint, definition, progress and supervision.

<state>/<name>/checkpoint/      Spark's checkpoint
               identity.json    identifies the directory and thus the checkpoint
               starts.json      where the stream began; backfill.json where history ends
                                (spark/pipeline/start_offsets.py)
               retries.json     dead-letter offsets when the stream began (spark/pipeline/retry_topic.py)
               definition.json  the pipeline file as of the last start (stored_definition.py)
               run.json         start time and stall limit; failure.json the last exit
               remote.json      the Spark Connect server of its queries, until they are known to have ended
               progress.json    the newest progress, always complete; recent.json earlier ones, for plots
               log              output of the supervisor and of Spark
               lock             held by the supervisor
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.model.errors import InvalidConfig

STATE_VARIABLE = "HEADRACE_PIPELINES"
# Reading or writing the holder of the lock takes a few system calls. After this time something else is wrong.
LOOK_S_MAX = 1.0
NOTE_BYTES, PROCESS_BYTES = 256, 20
PAUSE_S = 0.002  # longer than many such reads, and much shorter than the limit


class AlreadyRunning(InvalidConfig):
    """An instance of this pipeline runs on this host."""


def state_root() -> Path:
    """Returns the root of the state directories: $HEADRACE_PIPELINES, or a default in the user's home."""
    named = os.environ.get(STATE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "headrace" / "pipelines"


class PipelineState:
    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.folder = (root or state_root()) / name

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def exists(self) -> bool:
        return self.folder.is_dir()

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, what: str, value: Any, *, durable: bool = False) -> None:
        """Writes a small JSON file atomically. `durable` syncs it, for values that must not be determined a second
        time.
        """
        self.make()
        path = self.folder / f"{what}.json"
        # One per process: supervisor, worker and commands write here, and must not rename each other's unfinished
        # files.
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync(self.folder)

    def note(self, what: str, value: Any | None) -> None:
        """Writes a small JSON file in place, in bytes that were allocated at the first write, so that it succeeds on a
        full disk. A concurrent reader may see an incomplete file, which `read` returns as None. A value of None
        clears it.
        """
        self.make()
        text = ("" if value is None else json.dumps(value)).encode().ljust(NOTE_BYTES)
        descriptor = os.open(self.folder / f"{what}.json", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
        finally:
            os.close(descriptor)

    def clear(self, what: str) -> None:
        (self.folder / f"{what}.json").unlink(missing_ok=True)

    def read(self, what: str) -> Any | None:
        try:
            return json.loads((self.folder / f"{what}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock while the pipeline runs. The kernel releases it when the process ends, however it ends."""
        self.make()
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(descriptor)
            # In place, because the disk may be full.
            os.pwrite(descriptor, str(os.getpid()).encode().ljust(PROCESS_BYTES), 0)
            self._sweep()
            yield
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Removes unfinished files of processes that were killed while writing."""
        for path in self.folder.glob("*.*.tmp"):
            writer = path.suffixes[-2].removeprefix(".")
            if writer.isdecimal() and not _is_alive(int(writer)):
                path.unlink(missing_ok=True)

    def _take(self, descriptor: int) -> None:
        """Takes the lock. Retries while `holder` of another process has it, which takes a shared lock for a moment."""
        deadline = time.monotonic() + LOOK_S_MAX
        while not _try_to_lock(descriptor, fcntl.LOCK_EX):
            holder = self.holder()
            if holder is not None or time.monotonic() > deadline:
                raise AlreadyRunning(
                    f"{self.name} is already running (process {holder}); `headrace pipeline stop {self.name}` stops it"
                )
            time.sleep(PAUSE_S)

    def holder(self) -> int | None:
        """Returns the id of the process that runs the pipeline; None if there is none."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # A process that has just taken the lock has not written its id yet: the file is empty, or has the id of one
            # that was killed. A process in another container never appears alive, so its id is returned after the
            # limit.
            deadline = time.monotonic() + LOOK_S_MAX
            while not _try_to_lock(descriptor, fcntl.LOCK_SH):
                said = os.pread(descriptor, PROCESS_BYTES, 0).strip()
                if time.monotonic() > deadline or (said and _is_alive(int(said))):
                    return int(said) if said else None
                time.sleep(PAUSE_S)
            return None
        finally:
            os.close(descriptor)

    def identity(self) -> str:
        """Returns the id of this directory and its checkpoint. It survives a reset."""
        known = self.read("identity")
        if known is None:
            known = uuid4().hex
            self.write("identity", known, durable=True)
        return str(known)

    def forget(self) -> None:
        """Resets the state: the next start begins at the start offsets of the file.

        Checkpoints are renamed before they are removed, because a partly removed checkpoint would be taken for an
        older one.
        """
        for folder in self.folder.glob("checkpoint*"):
            folder.rename(folder.with_name(f"forgotten-{uuid4().hex}"))
        for what in ("progress", "recent", "run", "failure", "starts", "backfill", "retries", "remote"):
            self.clear(what)
        for folder in self.folder.glob("forgotten-*"):
            shutil.rmtree(folder, ignore_errors=True)


def _try_to_lock(descriptor: int, how: int) -> bool:
    """Returns False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(process: int) -> bool:
    try:
        with suppress(PermissionError):  # the process belongs to another user
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def all_states(root: Path | None = None) -> list[PipelineState]:
    folder = root or state_root()
    if not folder.is_dir():
        return []
    return [PipelineState(one.name, folder) for one in sorted(folder.iterdir()) if one.is_dir()]
