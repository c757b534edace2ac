"""The folder of a pipeline on this machine: its checkpoint, what it says, how it fares, who runs it.

<state>/<name>/checkpoint/      Spark's own
               identity.json    tells the folder, and with it the checkpoint, from any other
               starts.json      where the stream began; backfill.json where history ends
               (spark/pipeline/start_offsets.py)
               retries.json     which dead letters were written before the stream began (spark/pipeline/retry_topic.py)
               definition.json  its file as it was when it was started (stored_definition.py)
               run.json         how it was started; failure.json how it ended last
               remote.json      the Spark Connect server where its queries run, until they are known to have ended
               progress.json    the newest progress, whole at any time; recent.json some before it, for plots
               log              what the supervisor and Spark say
               lock             held by the one that runs it
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
# To look who holds a pipeline, and to say so after taking it, are a few system calls: past this it is something else.
LOOK_S_MAX = 1.0
NOTE_BYTES, PROCESS_BYTES = 256, 20
PAUSE_S = 0.002  # many looks end within it, and a second has many of it


class AlreadyRunning(InvalidConfig):
    """A copy of this pipeline runs on this machine."""


def state_root() -> Path:
    """Where pipelines are kept: $HEADRACE_PIPELINES, or the place for such things in the user's home."""
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
        """A small JSON file, whole at any time; `durable` is for what must not be decided a second time."""
        self.make()
        path = self.folder / f"{what}.json"
        # Of our own: the supervisor, its worker and commands write here, and none may rename another's half a file.
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
        """A small JSON file that is written in place, in bytes that it has had from the beginning: also where the disk
        is full. A reader may meet half of it, and takes it for nothing. None: there is nothing to note."""
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
        """For as long as the pipeline runs; the kernel lets go when the process dies, however it dies."""
        self.make()
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(descriptor)
            os.pwrite(descriptor, str(os.getpid()).encode().ljust(PROCESS_BYTES), 0)  # in place: the disk may be full
            self._sweep()
            yield
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Half a file of one that was killed while it wrote is of no use to anybody."""
        for path in self.folder.glob("*.*.tmp"):
            writer = path.suffixes[-2].removeprefix(".")
            if writer.isdecimal() and not _is_alive(int(writer)):
                path.unlink(missing_ok=True)

    def _take(self, descriptor: int) -> None:
        """Whoever asks for the holder has the lock too, for a moment and not alone: such a one is waited for."""
        deadline = time.monotonic() + LOOK_S_MAX
        while not _try_to_lock(descriptor, fcntl.LOCK_EX):
            holder = self.holder()
            if holder is not None or time.monotonic() > deadline:
                raise AlreadyRunning(
                    f"{self.name} runs already (process {holder}); `headrace pipeline stop {self.name}` ends it"
                )
            time.sleep(PAUSE_S)

    def holder(self) -> int | None:
        """The process that runs it; None if nobody does."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # One that has just taken the lock has yet to say who it is: until then there is nothing, or the name of
            # one that was killed. One in another container is never seen to be alive, and is believed in the end.
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
        """Tells this folder, with its checkpoint, from every other one. Outlives a reset."""
        known = self.read("identity")
        if known is None:
            known = uuid4().hex
            self.write("identity", known, durable=True)
        return str(known)

    def forget(self) -> None:
        """Begin anew: the next start reads from where the file says.

        Checkpoints go first, each by a rename: one that is half removed would be taken for one of an earlier time.
        """
        for folder in self.folder.glob("checkpoint*"):
            folder.rename(folder.with_name(f"forgotten-{uuid4().hex}"))
        for what in ("progress", "recent", "run", "failure", "starts", "backfill", "retries", "remote"):
            self.clear(what)
        for folder in self.folder.glob("forgotten-*"):
            shutil.rmtree(folder, ignore_errors=True)


def _try_to_lock(descriptor: int, how: int) -> bool:
    """False: somebody is in the way."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(process: int) -> bool:
    try:
        with suppress(PermissionError):  # it is somebody else's
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
