"""Leader epochs whose file was not synced when the process or the host crashed."""

from dataclasses import replace

import pytest

from headrace.model.errors import CorruptLog
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME, LeaderEpochFileCache
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log, read_values

DIRECTORY = "/data/t-0"
SMALL_SEGMENTS = replace(CONFIG, segment_bytes=250)
BATCHES = 7  # in three segments, the last of which has one


def synced_log(files: SimFiles) -> tuple[Log, list[str]]:
    files.make_dir(DIRECTORY)
    files.sync_dir("/")
    files.sync_dir("/data")
    log = new_log(files, SMALL_SEGMENTS)
    values = [f"value {number}" for number in range(BATCHES - 1)]
    for value in values:
        append(log, value, epoch=1)
    sync(log)
    return log, values


def sync(log: Log) -> None:
    work, end = log.unsynced()
    for item in work:
        item.sync()
    log.synced(end)


def names_of(files: SimFiles, suffix: str) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in files.list(DIRECTORY) if name.endswith(suffix)]


def test_d4_batch_of_an_unsynced_epoch_behind_a_trusted_segment_is_readable() -> None:
    with SimFiles() as files:
        log, values = synced_log(files)
        append(log, "value of a new epoch", epoch=2)
        for path in names_of(files, ".log"):
            file = files.open(path)
            file.sync()
        files.sync_dir(DIRECTORY)
        file = files.open(f"{DIRECTORY}/{FILE_NAME}")
        file.truncate(0)
        file.append(b"0\n1\n1 0\n")
        file.sync()
        # The first segment is checked because its index was lost, the second one is not, the third is always checked.
        assert len(names_of(files, ".log")) == 3
        files.remove(names_of(files, ".index")[0])
        recovered = Checkpoint(recovery_point=BATCHES - 1, same_boot_as_last_run=False)
        log = open_log(files, DIRECTORY, SMALL_SEGMENTS, recovered, now_ms=0)
        assert log.epochs.entries() == [(1, 0), (2, BATCHES - 1)]
        assert read_values(log) == [*values, "value of a new epoch"]


def test_d4_start_after_a_process_crash_syncs_leader_epochs() -> None:
    """Else a power loss leaves batches that count, and epochs that say otherwise."""
    with SimFiles() as files:
        log, _ = synced_log(files)
        append(log, "value of a new epoch", epoch=2)
        open_log(files, DIRECTORY, SMALL_SEGMENTS, Checkpoint(recovery_point=BATCHES - 1), now_ms=0)
        files.lose_power()
        assert files.read(f"{DIRECTORY}/{FILE_NAME}") == f"0\n2\n1 0\n2 {BATCHES - 1}\n".encode()


@pytest.mark.parametrize("missing", [1, 2])
def test_epochs_file_that_ends_within_a_row_is_corrupt(missing: int) -> None:
    """Its last offset may lack digits."""
    with SimFiles() as files:
        files.make_dir(DIRECTORY)
        files.replace(f"{DIRECTORY}/{FILE_NAME}", b"0\n2\n0 0\n1 10\n"[:-missing])
        with pytest.raises(CorruptLog, match="ends within a row"):
            LeaderEpochFileCache(files, DIRECTORY)
