"""What a thread gets when it asks for shorter turns, and what it keeps."""

import os
import threading

from headrace.process.runtime import BROKER_SLICE_NS, ORDINARY_SLICE_NS, set_scheduler_slice, step_back
from tests.turns import kernel_gives_turns, turns_of

THIS_THREAD = 0


def in_a_thread(work):
    """What it returns; the test's own thread keeps its turns."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def asked_for(wanted_ns: int) -> tuple[int, int, int]:
    assert set_scheduler_slice(wanted_ns)
    return turns_of(THIS_THREAD), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


def test_a_thread_gets_the_turns_it_asks_for_and_stays_what_it_is():
    before = in_a_thread(lambda: (turns_of(THIS_THREAD), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))
    got = in_a_thread(lambda: asked_for(BROKER_SLICE_NS))
    assert got[0] == (BROKER_SLICE_NS if kernel_gives_turns() else before[0])
    assert got[1:] == before[1:]


def test_a_process_can_go_back_to_ordinary_turns():
    before = in_a_thread(lambda: turns_of(THIS_THREAD))

    def there_and_back() -> int:
        set_scheduler_slice(BROKER_SLICE_NS)
        set_scheduler_slice(ORDINARY_SLICE_NS)
        return turns_of(THIS_THREAD)

    assert in_a_thread(there_and_back) == before


def test_whoever_steps_back_is_nicer_than_before_and_has_ordinary_turns():
    before = in_a_thread(lambda: (turns_of(THIS_THREAD), os.getpriority(os.PRIO_PROCESS, 0)))

    def back() -> tuple[int, int]:
        set_scheduler_slice(BROKER_SLICE_NS)
        step_back(3)
        return turns_of(THIS_THREAD), os.getpriority(os.PRIO_PROCESS, 0)

    assert in_a_thread(back) == (before[0], before[1] + 3)


def test_a_policy_that_somebody_chose_is_kept():
    def batch() -> bool:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return set_scheduler_slice(BROKER_SLICE_NS)

    assert in_a_thread(batch) is False


def test_a_machine_without_the_call_is_left_alone(monkeypatch):
    monkeypatch.setattr("headrace.process.runtime._CALL_NUMBERS", {})
    assert set_scheduler_slice(BROKER_SLICE_NS) is False
