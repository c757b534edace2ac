"""Work in steps: results and errors reach the task, whoever called the step."""

import pytest

from headrace.storage.io.stepwise import OffLoop, Task, off_loop, run_through


def twice(number: int) -> Task[int]:
    yield None
    doubled = yield from off_loop(lambda: number * 2)
    yield None
    return doubled


def test_a_driver_that_calls_the_steps_gets_the_result() -> None:
    assert run_through(twice(21)) == 42


def test_a_driver_that_does_not_gets_it_too() -> None:
    task = twice(21)
    assert [next(task) is None for _ in range(3)] == [True, False, True]
    with pytest.raises(StopIteration, match="42"):
        next(task)


def test_an_error_is_met_by_the_task_and_not_by_the_driver() -> None:
    def failing() -> Task[str]:
        try:
            yield from off_loop(lambda: 1 // 0)
        except ZeroDivisionError:
            return "met"
        return "missed"

    task = failing()
    step = next(task)
    assert step is not None
    step()
    with pytest.raises(StopIteration, match="met"):
        next(task)


def test_the_work_is_done_once() -> None:
    calls = []
    step = OffLoop(lambda: calls.append(1))
    step()
    step()
    step.result()
    assert calls == [1]
