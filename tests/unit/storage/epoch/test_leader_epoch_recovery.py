"""Leader epochs of compacted logs: compaction removes their batches, and the history of epochs stays."""

from dataclasses import replace
from random import Random

import pytest

from headrace.core.replica.follower_truncation import divergence
from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log import Log
from headrace.storage.log_append import append_copy
from headrace.storage.log_loader import Checkpoint, open_log
from tests.unit.storage.cleaner.compaction_kit import COMPACTED, DIRECTORY, batches, clean, new_log, reopen, sync

CONFIG = replace(COMPACTED, segment_bytes=1_000)
PATH = f"{DIRECTORY}/{FILE_NAME}"
CLEAN_STOP = Checkpoint(clean=True)


def append(log: Log, key: str, epoch: int) -> None:
    batch = memoryview(bytearray(build_batch([NewRecord(100 + log.log_end_offset, key.encode(), b"v" * 20)])))
    log.append(batch, parse_header(batch), epoch, 0)


def log_with_a_removed_start() -> tuple[MemoryFiles, Log]:
    """Epoch 0 has lost all batches, epoch 2 its first ones, from offset 12 on."""
    files = MemoryFiles()
    log = new_log(files, CONFIG)
    for epoch in (0, 1):
        for number in range(6):
            append(log, f"a{number}", epoch)
    for number in range(24):
        append(log, "x" if number < 14 else f"y{number}", 2)
    sync(log)
    clean(log)
    return files, log


def random_log(seed: int) -> tuple[MemoryFiles, Log]:
    random = Random(seed)
    files, log, epoch = MemoryFiles(), None, -1
    log = new_log(files, CONFIG)
    for _ in range(random.randrange(2, 9)):
        epoch += random.randrange(1, 3)
        for _ in range(random.randrange(1, 15)):
            append(log, f"k{random.randrange(12)}", epoch)
    sync(log)
    clean(log)
    return files, log


@pytest.mark.parametrize("checkpoint", [CLEAN_STOP, Checkpoint(recovery_point=0)], ids=["clean stop", "crash"])
def test_restart_keeps_epochs_whose_batches_are_compacted(checkpoint: Checkpoint) -> None:
    files, log = log_with_a_removed_start()
    before = log.epochs.entries()
    assert before == [(0, 0), (1, 6), (2, 12)]
    log.close()
    again = open_log(files, DIRECTORY, CONFIG, checkpoint, now_ms=0)
    assert again.epochs.entries() == before
    diverging = divergence(again.epochs, again.log_end_offset, 14, 1)
    assert diverging is not None
    assert diverging.end_offset == 12, "a follower truncates the records that no leader had"


@pytest.mark.parametrize("seed", range(60))
def test_restart_of_any_compacted_log_keeps_its_epochs(seed: int) -> None:
    files, log = random_log(seed)
    before, content = log.epochs.entries(), files.read(PATH)
    log.close()
    assert reopen(files, CONFIG).epochs.entries() == before
    assert files.read(PATH) == content


@pytest.mark.parametrize("seed", range(60))
def test_rebuilt_epochs_never_end_later_than_they_did(seed: int) -> None:
    """A follower may truncate records that it fetches again; it never keeps records that the leader never had."""
    files, log = random_log(seed)
    end, epochs = log.log_end_offset, log.epochs
    log.close()
    files.remove(PATH)
    rebuilt = reopen(files, CONFIG).epochs
    for asked in range(epochs.entries()[0][0], epochs.latest + 1):
        epoch_before, end_before = epochs.end_offset_for(asked, end)
        epoch_after, end_after = rebuilt.end_offset_for(asked, end)
        assert epoch_after <= max(epoch_before, asked)
        assert end_after <= end_before


@pytest.mark.parametrize("seed", range(60))
def test_copy_of_a_compacted_log_ends_no_epoch_later(seed: int) -> None:
    _, leader = random_log(seed)
    follower = new_log(MemoryFiles(), CONFIG)
    for batch, header in batches(leader):
        append_copy(follower, batch, header, 0)
    end = leader.log_end_offset
    for asked in range(leader.epochs.latest + 1):
        assert follower.epochs.end_offset_for(asked, end)[1] <= leader.epochs.end_offset_for(asked, end)[1]
