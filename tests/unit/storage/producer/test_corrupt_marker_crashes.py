"""A recovery that is itself interrupted, of a log with a corrupt abort marker: the abort is not lost."""

from random import Random

import pytest

from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.producer.producer_snapshot_file import remove_snapshots
from headrace.testing import PowerLost, SimFiles
from tests.unit.storage.log_kit import CONFIG
from tests.unit.storage.producer.test_corrupt_markers import DIRECTORY, committed, reopened, written
from tests.unit.storage.test_log_transactions import ABORT, COMMIT

KINDS = (ABORT, COMMIT)


def corrupt(files: SimFiles) -> int:
    """A synced log whose first abort marker has a flipped bit and whose snapshots are gone; its log end offset."""
    log, position = written(files, KINDS, rolls=False)
    log.close()
    remove_snapshots(files, DIRECTORY, after=-1)
    for directory in ("/", "/data", DIRECTORY):
        files.sync_dir(directory)
    files.flip_bit(log.segments[0].path, byte=position + 70, bit=0)
    return log.log_end_offset


@pytest.mark.parametrize("power_fails", [False, True], ids=["kill -9", "power failure"])
@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
def test_crash_in_recovery_keeps_lost_abort(clean: bool, power_fails: bool) -> None:
    operations = 0
    while True:
        with SimFiles() as files:
            end_offset = corrupt(files)
            files.lose_power_before(operations + 1)
            try:
                reopened(files, end_offset, clean=clean)
                is_over = True
            except PowerLost:
                is_over = False
            files.heal()
            if power_fails:
                files.lose_power(torn=Random(operations))
            again = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=end_offset, clean=False), now_ms=0)
            again.producers.high_watermark_advanced(again.log_end_offset)
            assert committed(again) == ["1 COMMIT"], f"crash before operation {operations + 1}"
        if is_over:
            break
        operations += 1
    assert operations > 10
