"""A pipeline whose state directory is on a full disk: it stays, says so, and goes on when there is disk space."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.pipeline.status import _cells, standing_of
from headrace.pipeline.state import PipelineState
from headrace.pipeline.supervisor import Supervisor
from headrace.process.restart_policy import DISK_FULL, DONE, FAILED, failure_code
from headrace.testing.local.small_disk import fill_disk, free_disk, mount_small_disk, unmount
from tests.patience import awaited

WAIT_S = 60
WORKER = """\
#!{python}
import sys
from pathlib import Path
from headrace.process.restart_policy import failure_code
from headrace.pipeline.state import PipelineState

try:
    PipelineState("p", Path({root!r})).write("starts", "x" * 10_000, durable=True)
except OSError as error:
    sys.exit(failure_code(error))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    try:
        mount_small_disk(str(folder), 256 * 1024)
    except PermissionError as error:
        pytest.skip(str(error))
    yield folder
    unmount(str(folder))


def test_supervisor_survives_full_disk_and_goes_on(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker"
    worker.write_text(WORKER.format(python=sys.executable, root=str(disk)))
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    state = PipelineState("p", disk)
    state.note("failure", None)  # it has run before
    (state.folder / "lock").write_text("12345678")
    fill_disk(str(disk))
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(Supervisor(state, []).run()))
    running.start()

    def fares() -> dict[str, Any]:
        return standing_of(state)

    seen = awaited(fares, lambda row: row["state"] == "failed", "a failure", WAIT_S)
    assert (seen["reason"], seen["process"] is not None) == ("disk full", True)
    assert _cells(seen)[:2] == ("p", "failed: disk full")
    free_disk(str(disk))
    running.join(WAIT_S)
    assert codes == [DONE]
    assert state.read("starts") == "x" * 10_000
    assert (fares()["state"], fares()["reason"]) == ("stopped", None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device"), DISK_FULL),
        (OSError(122, "Disk quota exceeded"), DISK_FULL),
        (RuntimeError("java.io.IOException: No space left on device"), DISK_FULL),
        (OSError(13, "Permission denied"), FAILED),
        (RuntimeError("something else"), FAILED),
    ],
)
def test_exit_code_tells_full_disk_from_other_failures(error: Exception, code: int) -> None:
    assert failure_code(error) == code
    wrapped = RuntimeError("the query ended")
    wrapped.__cause__ = error
    assert failure_code(wrapped) == code


def test_note_that_is_half_written_is_nothing(tmp_path: Path) -> None:
    state = PipelineState("p", tmp_path)
    state.note("failure", {"exit_code": 1, "at_ms": 5})
    assert state.read("failure") == {"exit_code": 1, "at_ms": 5}
    state.note("failure", None)
    assert state.read("failure") is None
    (state.folder / "failure.json").write_text('{"exit_c')
    assert state.read("failure") is None
