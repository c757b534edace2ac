"""Entries of aborted transactions that reached the disk, and whose markers did not."""

import pytest

from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.segment.transaction_index import SUFFIX
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log
from tests.unit.storage.test_log_transactions import ABORT, COMMIT, end, write

DIRECTORY = "/data/t-0"


def sync(log: Log) -> None:
    work, offset = log.unsynced()
    for item in work:
        item.sync()
    log.synced(offset)


def reopen(files: SimFiles, recovery_point: int, **fields: bool) -> Log:
    return open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=recovery_point, **fields), now_ms=0)


@pytest.mark.parametrize("is_in_new_segment", [False, True])
def test_entry_of_a_lost_marker_does_not_come_back(is_in_new_segment: bool) -> None:
    """A clean stop without an append since, a commit at the same offset, and another power loss."""
    with SimFiles() as files:
        files.make_dir(DIRECTORY)
        files.sync_dir("/")
        files.sync_dir("/data")
        log = new_log(files)
        append(log, "without a producer")
        write(log, 7, "in a transaction", sequence=0)
        if is_in_new_segment:
            log.roll(0)
        sync(log)
        end(log, 7, ABORT)
        files.open(log.active.path.removesuffix(".log") + SUFFIX).sync()
        files.sync_dir(DIRECTORY)
        files.lose_power()

        log = reopen(files, 1, same_boot_as_last_run=False)
        assert log.log_end_offset == 2
        log.close()
        log = reopen(files, 2, clean=True)
        end(log, 7, COMMIT)
        log.close()
        files.lose_power()

        log = reopen(files, 3, same_boot_as_last_run=False)
        assert log.log_end_offset == 3
        assert [entry for segment in log.segments for entry in segment.aborted.entries_from(0)] == []
