"""Time that a process did not live through does not count."""

from headrace.app.metadata_server import STEP_MS_MAX, RunningTimeClock
from headrace.testing.simulation.clock import SimClock


def test_it_runs_like_any_clock_while_it_is_looked_after() -> None:
    real = SimClock()
    clock = RunningTimeClock(real)
    before = clock.monotonic_ms()
    for _ in range(50):
        real.advance_ms(100)
        clock.count()
    real.advance_ms(42)
    assert clock.monotonic_ms() - before == 5042


def test_a_sleep_of_the_process_counts_as_one_step() -> None:
    real = SimClock()
    clock = RunningTimeClock(real)
    before = clock.monotonic_ms()
    real.advance_ms(60_000)
    assert clock.monotonic_ms() - before == STEP_MS_MAX
    clock.count()
    real.advance_ms(10)
    assert clock.monotonic_ms() - before == STEP_MS_MAX + 10


def test_it_never_goes_back() -> None:
    real = SimClock()
    clock = RunningTimeClock(real)
    seen = []
    for step in (0, 299, 1, 301, 5_000, 0, 1):
        real.advance_ms(step)
        seen.append(clock.monotonic_ms())
        clock.count()
        seen.append(clock.monotonic_ms())
    assert seen == sorted(seen)


def test_the_calendar_is_the_real_one() -> None:
    real = SimClock()
    clock = RunningTimeClock(real)
    real.advance_ms(60_000)
    assert clock.wall_ms() == real.wall_ms()
