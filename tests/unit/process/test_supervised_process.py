"""A process that is kept alive: when it is started again, and what a person is told."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from headrace.process.supervised_process import PAUSE_S_MAX, PAUSE_S_MIN, PROVEN_S, SupervisedProcess


class Someone:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.reason: str | None = None
        self.last_deed = ""

    def ended_by_itself(self) -> str | None:
        return self.reason

    def stop(self) -> None:
        self.last_deed = "stopped"

    def kill(self) -> None:
        self.last_deed = "killed"


class Later(Executor):
    """Does nothing before it is told to."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        self.work.append(run)
        return future


class Nursery:
    """Starts one after the other, and fails where it is told to."""

    def __init__(self) -> None:
        self.started: list[Someone] = []
        self.trouble: Exception | None = None
        self.pool = Later()
        self.kept = SupervisedProcess("broker 1", self.start, self.pool, now_s=0.0)

    def start(self) -> Someone:
        if self.trouble is not None:
            raise self.trouble
        self.started.append(Someone(100 + len(self.started)))
        return self.started[-1]

    def dies(self, now_s: float) -> str | None:
        self.started[-1].reason = "exit code -9"
        return self.kept.look(now_s)

    def is_started(self, now_s: float) -> str | None:
        """What is said when the time of the next start has come, and the start is over."""
        assert self.kept.look(now_s) is None
        self.pool.work.pop()()
        return self.kept.look(now_s)


@pytest.fixture
def nursery() -> Nursery:
    return Nursery()


def test_one_that_lives_is_left_alone(nursery: Nursery) -> None:
    assert [nursery.kept.look(now_s) for now_s in (0.0, 1.0, 1000.0)] == [None] * 3
    assert (nursery.pool.work, nursery.kept.pid) == ([], 100)


def test_one_that_ended_is_started_again_after_a_pause_and_both_is_told(nursery: Nursery) -> None:
    assert nursery.dies(5.0) == "broker 1 has ended (exit code -9) and is started again in 0.2 s"
    assert nursery.started[0].last_deed == "killed", "what was held of it is let go"
    assert nursery.kept.look(5.0 + PAUSE_S_MIN / 2) is None
    assert nursery.pool.work == []
    assert nursery.is_started(5.0 + PAUSE_S_MIN) == "broker 1 runs again, pid 101"
    assert nursery.kept.pid == 101


def test_nobody_waits_for_a_start(nursery: Nursery) -> None:
    nursery.dies(0.0)
    for now_s in (1.0, 2.0, 3.0):
        assert nursery.kept.look(now_s) is None
    assert len(nursery.pool.work) == 1, "it is started once"


def test_the_pauses_of_one_that_keeps_dying_double_up_to_a_bound(nursery: Nursery) -> None:
    said = []
    for round_ in range(8):
        said.append(str(nursery.dies(round_ * 10.0)).split()[-2])
        nursery.is_started(round_ * 10.0 + 9.0)
    assert said == ["0.2", "0.4", "0.8", "1.6", "3.2", f"{PAUSE_S_MAX:g}", f"{PAUSE_S_MAX:g}", f"{PAUSE_S_MAX:g}"]


def test_one_that_has_lived_for_long_starts_over_with_the_short_pause(nursery: Nursery) -> None:
    nursery.dies(0.0)
    nursery.is_started(1.0)
    assert str(nursery.dies(1.0 + PROVEN_S)).endswith("in 0.2 s")


def test_a_start_that_fails_is_told_and_tried_again(nursery: Nursery) -> None:
    nursery.dies(0.0)
    nursery.trouble = RuntimeError("it ended:\nmuch more\nthe port is taken\n")
    assert nursery.is_started(1.0) == "broker 1 could not be started (the port is taken) and is started again in 0.4 s"
    nursery.trouble = None
    assert nursery.is_started(2.0) == "broker 1 runs again, pid 101"


def test_the_first_start_must_succeed() -> None:
    def fail() -> Someone:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        SupervisedProcess("broker 1", fail, Later(), now_s=0.0)


def test_stopping_stops_one_that_runs_and_lets_go_of_one_that_has_ended(nursery: Nursery) -> None:
    nursery.kept.stop()
    assert nursery.started[0].last_deed == "stopped"
    other = Nursery()
    other.started[0].reason = "exit code 1"
    other.kept.stop()
    assert other.started[0].last_deed == "killed"


def test_stopping_waits_for_one_that_is_being_started(nursery: Nursery) -> None:
    nursery.dies(0.0)
    nursery.kept.look(1.0)
    nursery.pool.work.pop()()
    nursery.kept.stop()
    assert nursery.started[1].last_deed == "stopped"
