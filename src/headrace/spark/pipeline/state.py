"""The folder of a pipeline on this machine: its checkpoint, what it says, how it fares, who runs it.

<state>/<name>/pipeline.yaml    the file as it was when the pipeline was started
               checkpoint/      Spark's own
               run.json         how it was started
               progress.json    the newest progress, whole at any time
               log              what the supervisor and Spark say
               lock             held by the one that runs it
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.model.errors import InvalidConfig

STATE_VARIABLE = "HEADRACE_PIPELINES"


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
    def file(self) -> Path:
        return self.folder / "pipeline"

    @property
    def exists(self) -> bool:
        return self.folder.is_dir()

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, what: str, value: Any) -> None:
        """A small JSON file, whole at any time."""
        path = self.folder / f"{what}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)

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
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise AlreadyRunning(
                    f"{self.name} runs already (process {self.holder()}); `headrace pipeline stop {self.name}` ends it"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def holder(self) -> int | None:
        """The process that runs it; None if nobody does."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            with suppress(ValueError):
                return int(os.pread(descriptor, 20, 0))
            return None
        else:
            return None
        finally:
            os.close(descriptor)

    def forget(self) -> None:
        """Begin anew: the next start reads from where the file says."""
        for folder in self.folder.glob("checkpoint*"):
            shutil.rmtree(folder, ignore_errors=True)
        for what in ("progress", "run"):
            (self.folder / f"{what}.json").unlink(missing_ok=True)


def all_states(root: Path | None = None) -> list[PipelineState]:
    folder = root or state_root()
    if not folder.is_dir():
        return []
    return [PipelineState(one.name, folder) for one in sorted(folder.iterdir()) if one.is_dir()]
