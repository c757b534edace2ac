"""Idle producers expire also where no run of the broker is as long as producer.id.expiration.ms."""

import pytest

from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log

HOUR = 3600_000
DAY = 24 * HOUR


def restarted(files: SimFiles, log: Log) -> Log:
    log.close()
    checkpoint = Checkpoint(recovery_point=log.log_end_offset, clean=True)
    return open_log(files, "/data/t-0", CONFIG, checkpoint, now_ms=0)


def run_for(log: Log, hours: int, since_ms: int = 0) -> None:
    """Checks of the monotonic clock of this process."""
    for hour in range(hours + 1):
        log.producers.expire(since_ms + hour * HOUR, DAY)


@pytest.mark.parametrize("hours", [5, 8, 23])
def test_idle_time_goes_on_over_restarts(hours: int) -> None:
    with SimFiles() as files:
        log = new_log(files)
        append(log, "v", producer_id=1, producer_epoch=0, base_sequence=0)
        idle_hours = 0
        while idle_hours + hours < 24:
            run_for(log, hours, since_ms=idle_hours * 7 * HOUR)
            idle_hours += hours
            assert len(log.producers) == 1, "never too early"
            log = restarted(files, log)
        run_for(log, 24 - idle_hours)
        assert len(log.producers) == 0


def test_append_ends_the_idle_time() -> None:
    with SimFiles() as files:
        log = new_log(files)
        append(log, "v", producer_id=1, producer_epoch=0, base_sequence=0)
        run_for(log, 23)
        log = restarted(files, log)
        append(log, "w", producer_id=1, producer_epoch=0, base_sequence=1)
        run_for(log, 23)
        assert len(log.producers) == 1
        log = restarted(files, log)
        run_for(log, 1)
        assert len(log.producers) == 0


def test_batch_behind_the_snapshot_ends_the_idle_time() -> None:
    with SimFiles() as files:
        log = new_log(files)
        append(log, "v", producer_id=1, producer_epoch=0, base_sequence=0)
        run_for(log, 23)
        log = restarted(files, log)
        append(log, "w", producer_id=1, producer_epoch=0, base_sequence=1)
        killed = open_log(files, "/data/t-0", CONFIG, Checkpoint(recovery_point=1), now_ms=0)
        run_for(killed, 23)
        assert len(killed.producers) == 1
