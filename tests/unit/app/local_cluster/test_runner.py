"""`cluster up` adds and removes brokers, with processes that exist only in memory."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.app.local_cluster import runner
from headrace.app.local_cluster.control import WISH_PREFIX, read_state
from headrace.app.local_cluster.runner import LocalClusterRunner
from headrace.config.settings import Settings


class Process:
    failing_starts: ClassVar[set[int]] = set()
    failing_stops: ClassVar[set[int]] = set()
    stopped: ClassVar[list[int]] = []

    def __init__(self, settings: Settings, output: int, stop_seconds_max: float = 0) -> None:
        self.pid = 1000 + settings.node_id
        self._node_id = settings.node_id
        os.makedirs(settings.data_dir)
        Path(settings.data_dir, "data").touch()
        if settings.node_id in self.failing_starts:
            raise RuntimeError("the broker ended with code 1 before it served")

    def ended_by_itself(self) -> str | None:
        return None

    def stop(self) -> None:
        self.stopped.append(self._node_id)
        if self._node_id in self.failing_stops:
            raise RuntimeError("the broker did not stop within 15 s and was killed")

    def kill(self) -> None: ...


class MetadataProcess:
    pid = 1
    is_stopped = False

    def __init__(self, *_: object) -> None: ...

    def ended_by_itself(self) -> str | None:
        return None

    def stop(self) -> None:
        type(self).is_stopped = True

    def kill(self) -> None: ...


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalClusterRunner]:
    monkeypatch.setattr(runner, "BrokerProcess", Process)
    monkeypatch.setattr(runner, "MetadataProcess", MetadataProcess)
    monkeypatch.setattr(Process, "failing_starts", set())
    monkeypatch.setattr(Process, "failing_stops", set())
    monkeypatch.setattr(Process, "stopped", [])
    monkeypatch.setattr(MetadataProcess, "is_stopped", False)
    cluster = LocalClusterRunner(str(tmp_path), 3, 20_000, {})
    cluster.start()
    yield cluster
    cluster.stop()


def ask(cluster: LocalClusterRunner, folder: Path, **wish: object) -> dict[str, object]:
    path = folder / f"{WISH_PREFIX}1"
    path.with_suffix(".json").write_text(json.dumps(wish))
    cluster.obey()
    answer: dict[str, object] = json.loads(path.with_suffix(".done").read_text())
    path.with_suffix(".done").unlink()
    return answer


def listed(folder: Path) -> list[int]:
    state = read_state(str(folder))
    assert state is not None
    return [node.node_id for node in state.nodes]


def test_broker_is_added_and_removed_repeatedly(cluster: LocalClusterRunner, tmp_path: Path) -> None:
    for _ in range(3):
        assert ask(cluster, tmp_path, what="add") == {"node": 4}
        assert listed(tmp_path) == [1, 2, 3, 4]
        assert ask(cluster, tmp_path, what="remove", node=4) == {"node": 4}
        assert listed(tmp_path) == [1, 2, 3]
    assert not (tmp_path / "broker-4").exists()
    kept = sorted(path.name for path in tmp_path.glob("broker-4.removed-*"))
    assert kept == ["broker-4.removed-1", "broker-4.removed-2", "broker-4.removed-3"]


def test_broker_that_had_to_be_killed_is_removed(cluster: LocalClusterRunner, tmp_path: Path) -> None:
    ask(cluster, tmp_path, what="add")
    Process.failing_stops.add(4)
    assert ask(cluster, tmp_path, what="remove", node=4) == {"node": 4}
    assert listed(tmp_path) == [1, 2, 3]
    assert not (tmp_path / "broker-4").exists()


@pytest.mark.parametrize("failing", [{1}, {2}, {1, 2, 3}])
def test_one_broker_that_fails_to_stop_leaves_the_others(cluster: LocalClusterRunner, tmp_path: Path, failing) -> None:
    Process.failing_stops.update(failing)
    reports: list[str] = []
    assert not cluster.stop(reports.append)
    assert Process.stopped == [1, 2, 3]
    assert MetadataProcess.is_stopped
    failed = [number for number in (1, 2, 3) if any(f"broker {number} did not stop cleanly" in one for one in reports)]
    assert set(failed) == failing
    assert read_state(str(tmp_path)) is None, "another `up` may start the cluster"


def test_a_clean_stop_tells_of_each_broker(cluster: LocalClusterRunner) -> None:
    reports: list[str] = []
    assert cluster.stop(reports.append)
    assert reports == ["broker 1 has stopped", "broker 2 has stopped", "broker 3 has stopped"]


def test_failed_rename_leaves_no_stopped_broker_listed(
    cluster: LocalClusterRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(cluster, tmp_path, what="add")

    def rename(old: str, new: str) -> None:
        raise PermissionError(13, "Permission denied", old)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        assert "Permission denied" in str(ask(cluster, tmp_path, what="remove", node=4)["error"])
    assert listed(tmp_path) == [1, 2, 3]


def test_failed_add_leaves_no_data_for_the_next_start(cluster: LocalClusterRunner, tmp_path: Path) -> None:
    Process.failing_starts.add(4)
    assert "before it served" in str(ask(cluster, tmp_path, what="add")["error"])
    assert listed(tmp_path) == [1, 2, 3]
    assert not (tmp_path / "broker-4").exists()
    Process.failing_starts.clear()
    assert ask(cluster, tmp_path, what="add") == {"node": 4}
