"""A leader checks again what a follower rejects: no flipped bit of a batch header reaches a follower's log."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.broker.replica.sent_records import SentSlices
from headrace.broker.replication.follower_log import Expected, Unconfirmed, verified_batches
from headrace.model.errors import CorruptBatch, CorruptLog
from headrace.records.batch import CRC_START, parse_header, patch_offset_and_epoch
from headrace.storage.log import Log
from headrace.storage.log_append import append_batches_as_follower, append_copy
from headrace.storage.log_types import FileRecords
from headrace.storage.segment.corrupt_ranges import damaged_from
from headrace.testing import SimFiles
from tests.unit.storage import log_kit
from tests.unit.storage.log_kit import batch_of, new_log, read_values

FOLLOWER = 2
LEADER_EPOCH = 9
COUNT = 12
# A batch takes about 70 bytes: four in a segment, and an index entry for every second one.
CONFIG = replace(log_kit.CONFIG, segment_bytes=300, index_interval_bytes=100)
FETCHES_MAX = 100


class Copying:
    """A leader's log, and a follower that fetches from it as `Fetcher` does."""

    def __init__(self, leader: Log, follower: Log) -> None:
        self.leader, self.follower = leader, follower
        self.sent = SentSlices()
        self._unconfirmed = -1
        self.fetches = 0

    def fetch(self, *, looks: int = 2) -> FileRecords | None:
        """One request. The leader may look several times until there is enough to send."""
        self.fetches += 1
        offset = self.follower.log_end_offset
        self.sent.fetched(FOLLOWER)
        for _ in range(looks - 1):
            self.sent.read(self.leader, FOLLOWER, offset, 150)
        found = self.sent.read(self.leader, FOLLOWER, offset, 150)
        if found is not None:
            self.sent.sends(self.leader, FOLLOWER, offset, found)
        return found

    def take(self, found: FileRecords) -> None:
        end = self.follower.log_end_offset
        expected = Expected(end, self.follower.epochs.latest, LEADER_EPOCH, is_confirmed=end == self._unconfirmed)
        try:
            for run in verified_batches(memoryview(found.read()), expected):
                append_batches_as_follower(self.follower, *run, now_ms=0)
        except Unconfirmed:
            self._unconfirmed = self.follower.log_end_offset
        except CorruptBatch:
            pass  # fetched again later

    def run(self) -> None:
        """Until the follower has everything, or the leader finds its own damage."""
        while self.follower.log_end_offset < self.leader.log_end_offset:
            assert self.fetches < FETCHES_MAX, "the follower goes on"
            found = self.fetch()
            if found is not None:
                self.take(found)


@pytest.fixture
def files() -> Iterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def written(files: SimFiles, *epochs: int, offsets: range | list[int] = range(COUNT)) -> Copying:
    log = new_log(files, CONFIG)
    for number, offset in enumerate(offsets):
        batch = memoryview(bytearray(batch_of([str(offset)])))
        patch_offset_and_epoch(batch, offset, epochs[number * len(epochs) // len(offsets)])
        append_copy(log, batch, parse_header(batch), 0)
    return Copying(log, Log.create(files, "/data/copy-0", CONFIG, now_ms=0))


def test_follower_gets_the_batches_of_all_epochs(files: SimFiles) -> None:
    copying = written(files, 0, 2, 3, 9)
    copying.run()
    assert read_values(copying.follower) == read_values(copying.leader)
    assert copying.follower.epochs.entries() == copying.leader.epochs.entries() == [(0, 0), (2, 3), (3, 6), (9, 9)]
    assert damaged_from(copying.leader) is None


def test_gaps_are_copied_after_the_leader_has_checked_them(files: SimFiles) -> None:
    copying = written(files, 4, offsets=[1, 2, 5, 6, 7, 13, 20, 30, 31])
    copying.run()
    assert read_values(copying.follower) == ["1", "2", "5", "6", "7", "13", "20", "30", "31"]
    assert damaged_from(copying.leader) is None


@pytest.mark.parametrize("number", range(COUNT))
def test_flipped_bit_in_a_header_stops_at_the_leader(number: int) -> None:
    """The leader wrote the batch itself, in this process. The last one has no batch behind it."""
    for bit in range(8 * CRC_START):
        with SimFiles() as files:
            copying = written(files, 0, 3, 6)
            original = read_values(copying.leader)
            segment = next(one for one in reversed(copying.leader.segments) if one.base_offset <= number)
            position = next(at for at, header in segment.headers() if header.base_offset == number)
            files.flip_bit(segment.path, byte=position + bit // 8, bit=bit % 8)
            with pytest.raises(CorruptLog):
                copying.run()
            assert copying.follower.log_end_offset == number, bit
            assert read_values(copying.follower) == original[:number], bit
            assert damaged_from(copying.leader) == number, bit
            epochs = [header.leader_epoch for one in copying.follower.segments for _, header in one.headers()]
            assert epochs == [(0, 3, 6)[one * 3 // COUNT] for one in range(number)], bit


def test_batches_that_were_taken_are_not_checked_again(files: SimFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr("headrace.broker.replica.sent_records.read_again", fail)
    copying = written(files, 0)
    copying.run()
    assert copying.follower.log_end_offset == COUNT


def test_rejected_batches_are_checked_and_sent_again(files: SimFiles) -> None:
    """A follower whose disk is full rejects what is right."""
    copying = written(files, 0)
    first, second = copying.fetch(looks=1), copying.fetch(looks=1)
    assert first is not None
    assert second is not None
    assert first.checked_bytes == 0, "it wrote them itself"
    assert second == first._replace(checked_bytes=first.length)
    copying.run()
    assert read_values(copying.follower) == read_values(copying.leader)
