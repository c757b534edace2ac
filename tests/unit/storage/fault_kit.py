"""The life of a log on a disk that fails: what was promised, and what must therefore be there afterwards."""

from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from headrace.model.errors import CorruptLog
from headrace.model.ids import TopicPartition
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.segment.segment_replacement import remove_segment_files
from headrace.storage.timestamp_lookup import offset_at_or_after
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, read_values

DATA = "/data"
PARTITION = TopicPartition("t", 0)
FOLDER = f"{DATA}/t-0"
TOPIC_ID = UUID(int=7)
PRODUCER = 1
# A batch of one record takes about 85 bytes: a segment holds four, and every second one gets an index entry.
SEGMENT_CONFIG = replace(CONFIG, segment_bytes=350)


@dataclass
class Promises:
    """What the clients of the partition know."""

    acked: dict[int, str] = field(default_factory=dict)
    written: dict[int, set[str]] = field(default_factory=dict)
    start: int = 0  # below it everything is deleted for good
    start_asked: int = 0  # and perhaps up to here

    @property
    def end(self) -> int:
        return max(self.acked, default=-1) + 1


class Holder:
    """One process that holds the partition, as the broker does it."""

    def __init__(self, files: SimFiles, promises: Promises, boot: int = 0) -> None:
        self.files, self.promises, self.boot = files, promises, boot
        self.log_dir = LogDirectory(files, DATA)
        self.log_dir.claim("cluster", 1, UUID(int=1))
        self.log_dir.begin_writing()
        if files.exists(FOLDER):
            self.log = self.log_dir.open(PARTITION, SEGMENT_CONFIG, now_ms=0)
        else:
            self.log = self.log_dir.create(PARTITION, TOPIC_ID, SEGMENT_CONFIG, now_ms=0)
        self.log_dir.end_recovery()

    def write(self, count: int = 1, *, sync: bool = True) -> None:
        """One batch a record, one sequence number a batch: sequences and offsets are the same numbers."""
        for _ in range(count):
            offset = self.log.log_end_offset
            value = f"value {offset} of boot {self.boot}"
            self.promises.written.setdefault(offset, set()).add(value)
            append(
                self.log,
                value,
                timestamp=1_000 + offset,
                epoch=self.boot,
                producer_id=PRODUCER,
                producer_epoch=0,
                base_sequence=offset,
            )
            if sync:
                self.sync()

    def sync(self) -> None:
        """Group commit: what is on disk is acknowledged."""
        work, end = self.log.take_unflushed()
        for item in work:
            item.sync()
        self.log.synced(end)
        for offset in range(self.promises.end, end):
            self.promises.acked[offset] = f"value {offset} of boot {self.boot}"

    def checkpoint(self) -> None:
        self.log_dir.note(PARTITION, self.log)
        self.log_dir.write_recovery_points()

    def delete_records(self, before: int) -> None:
        self.promises.start_asked = max(self.promises.start_asked, before)
        gone = self.log.advance_log_start(before)
        self.log_dir.note(PARTITION, self.log)
        self.log_dir.write_log_starts()
        self.promises.start = max(self.promises.start, before)
        for segment in gone:
            remove_segment_files(self.files, segment)

    def close(self) -> None:
        self.log.close()
        self.log_dir.note(PARTITION, self.log)
        self.log_dir.mark_clean()
        self.acknowledge_rest()

    def acknowledge_rest(self) -> None:
        for offset in range(self.promises.end, self.log.log_end_offset):
            self.promises.acked[offset] = f"value {offset} of boot {self.boot}"

    def acknowledge_survivors(self) -> None:
        """What survived a crash is committed: consumers see it, and its producer's repetition is answered with it."""
        for offset in range(self.promises.end, self.log.log_end_offset):
            self.promises.acked[offset] = read_values(self.log, offset, limit=offset + 1)[0]


def script(files: SimFiles, promises: Promises) -> None:
    """Everything that happens to a log, and two stops in between."""
    holder = Holder(files, promises)
    holder.write(3)
    holder.checkpoint()
    holder.write(3)
    holder.write(4, sync=False)  # the segment rolls in the middle of what one sync serves
    holder.sync()
    holder.delete_records(2)
    holder.write(3)
    holder.checkpoint()
    holder.delete_records(holder.log.segments[2].base_offset)
    holder.write(2)
    holder.close()
    holder = Holder(files, promises, boot=1)
    holder.write(6)
    holder.delete_records(holder.log.log_end_offset - 3)
    holder.checkpoint()
    holder.write(3)
    holder.write(2, sync=False)


def run_until(files: SimFiles, promises: Promises, operations: int) -> bool:
    """Run the script and let the power go after so many operations; whether it went."""
    from headrace.testing import PowerLost

    files.lose_power_before(operations + 1)
    try:
        script(files, promises)
    except PowerLost:
        return True
    finally:
        files.heal()
    return False


def check(log: Log, promises: Promises) -> None:
    """Everything acknowledged is there, in order; what else is there was written there; nothing is made up."""
    assert not log.holes
    assert not any(segment.holes for segment in log.segments)
    assert promises.start <= log.log_start_offset <= promises.start_asked
    assert log.log_end_offset >= promises.end
    values = read_values(log, log.log_start_offset)
    assert len(values) == log.log_end_offset - log.log_start_offset, "offsets have no gap"
    for offset, value in enumerate(values, log.log_start_offset):
        assert value == promises.acked.get(offset, value)
        assert value in promises.written[offset]
    bases = [segment.base_offset for segment in log.segments]
    assert bases[1:] == [segment.next_offset for segment in log.segments[:-1]]
    check_lookups(log, values)
    check_producer(log)


def check_lookups(log: Log, values: list[str]) -> None:
    """The indexes lead to where reading everything leads."""
    for offset in range(log.log_start_offset, log.log_end_offset):
        assert read_values(log, offset, limit=offset + 1) == [values[offset - log.log_start_offset]]
        found = run_through(offset_at_or_after(log, 1_000 + offset))
        assert found is not None
        assert (found.offset, found.timestamp) == (offset, 1_000 + offset)


def check_producer(log: Log) -> None:
    """The next sequence is accepted, and the last one is known."""
    end = log.log_end_offset
    entry = log.producers.get(PRODUCER)
    if end > log.log_start_offset:
        assert entry is not None
        assert entry.next_sequence == end
        again = append(log, "again", producer_id=PRODUCER, producer_epoch=0, base_sequence=end - 1)
        assert again == (end - 1, end, True)


def lives_on(files: SimFiles, promises: Promises, boot: int) -> None:
    """The log is as promised, takes records, keeps them over the next power cut, and so on."""
    for number in range(2):
        holder = Holder(files, promises, boot + number)
        check(holder.log, promises)
        holder.acknowledge_survivors()
        holder.write(2)
        check(holder.log, promises)
        files.lose_power(torn=Random(boot + number))
    check(Holder(files, promises, boot + 2).log, promises)


def readable(log: Log) -> dict[int, str]:
    """Every record that can be read, each asked for by itself."""
    found: dict[int, str] = {}
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            values = read_values(log, offset, limit=offset + 1)
        except CorruptLog:
            continue
        assert len(values) <= 1
        if values:
            found[offset] = values[0]
    return found
