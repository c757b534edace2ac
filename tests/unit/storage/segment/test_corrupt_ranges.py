"""Where a log is damaged, and what is left of it when it is cut there."""

from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.log_truncation import truncate_log
from headrace.storage.segment.corrupt_ranges import damaged_from
from headrace.testing.simulation.files import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log, read_values

DIRECTORY = "/data/t-0"


def reopened(flip_at: int) -> Log:
    """A log of five batches of one record, of which one bit was changed while nobody looked."""
    files = SimFiles()
    log = new_log(files)
    for number in range(5):
        append(log, str(number))
    log.close()
    files.flip_bit(log.segments[0].path, byte=flip_at)
    return open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=5, clean=True), now_ms=0)


def batch_bytes() -> int:
    log = new_log()
    append(log, "0")
    return log.size_bytes


def test_a_log_is_damaged_from_where_a_reader_could_not_go_on() -> None:
    log = reopened(2 * batch_bytes() + 65)
    assert damaged_from(log) is None, "nobody has looked"
    log.segments[0].check(0, log.segments[0].size)
    assert damaged_from(log) == 2


def test_what_is_before_the_damage_stays_when_it_is_cut() -> None:
    for flip_at in (2 * batch_bytes() + 65, 2 * batch_bytes() + 7):  # in a record; in the base offset
        log = reopened(flip_at)
        log.segments[0].check(0, log.segments[0].size)
        truncate_log(log, 2, now_ms=0)
        assert (log.log_end_offset, read_values(log), damaged_from(log)) == (2, ["0", "1"], None)
        append(log, "again")
        assert read_values(log) == ["0", "1", "again"]


def test_damage_that_retention_has_passed_does_not_count() -> None:
    log = reopened(batch_bytes() + 65)
    log.segments[0].check(0, log.segments[0].size)
    log.advance_log_start(3)
    assert damaged_from(log) is None


def test_a_log_whose_segments_are_gone_is_damaged_from_its_start() -> None:
    log = open_log(_only_a_folder(), DIRECTORY, CONFIG, Checkpoint(recovery_point=5, clean=True), now_ms=0)
    assert (log.log_end_offset, damaged_from(log)) == (5, 0)
    truncate_log(log, 0, now_ms=0)
    assert (log.log_start_offset, log.log_end_offset, damaged_from(log)) == (0, 0, None)


def _only_a_folder() -> MemoryFiles:
    files = MemoryFiles()
    files.make_dir(DIRECTORY)
    return files
