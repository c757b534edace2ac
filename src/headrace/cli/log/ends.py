"""Reads the leader epoch and the log end offset of each replica in the data directories of stopped brokers.

Read-only. The replica with the highest leader epoch, and among these the highest log end offset, has every record that
was acknowledged by all in-sync replicas: an election chooses a replica that has them, and followers of one epoch hold
the beginning of its leader's log.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.cli.log.verify import Problem, mapped, walk_segment
from headrace.model.errors import CorruptLog
from headrace.records.batch import BatchHeader, batch_crc
from headrace.storage.directory.checkpoint_files import read_meta_properties, read_rows
from headrace.storage.directory.partition_metadata_file import read_topic_id, uuid_to_text
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME as EPOCHS_FILE
from headrace.storage.io.file_system import OsFileSystem

NO_EPOCH = -1
NO_NODE = -1


class LogEnd(NamedTuple):
    """The fields are those of a line with `--json`."""

    topic: str
    partition: int
    topic_id: str  # empty if the directory does not name it
    node: int  # NO_NODE for a data directory that no broker has claimed
    leader_epoch: int
    log_end_offset: int

    @property
    def position(self) -> tuple[int, int]:
        return self.leader_epoch, self.log_end_offset


class Compared(NamedTuple):
    end: LogEnd
    is_behind: bool


def log_ends(path: Path) -> Iterator[LogEnd]:
    """Yields the log ends of a data directory, or of a file with the output of --json.

    Raises CorruptLog for any other file.
    """
    if path.is_dir():
        yield from _of_directory(path)
    else:
        yield from _of_lines(path)


def compared(ends: Iterable[LogEnd]) -> list[Compared]:
    """Returns the log ends in order of topic and partition, and whether another replica of the topic ID is ahead."""
    in_order = sorted(ends)
    newest: dict[tuple[str, int, str], tuple[int, int]] = {}
    for end in in_order:
        newest[end[:3]] = max(end.position, newest.get(end[:3], end.position))
    return [Compared(end, end.position < newest[end[:3]]) for end in in_order]


def _of_directory(path: Path) -> Iterator[LogEnd]:
    files = OsFileSystem()
    meta = read_meta_properties(files, str(path))
    for folder in sorted(path.iterdir()):
        topic, _, index = folder.name.rpartition("-")
        if topic and index.isdigit() and folder.is_dir():
            topic_id = read_topic_id(files, str(folder))
            epoch, end = _end_of(folder)
            yield LogEnd(
                topic,
                int(index),
                "" if topic_id is None else uuid_to_text(topic_id),
                NO_NODE if meta is None else meta.node_id,
                epoch,
                end,
            )


def _end_of(folder: Path) -> tuple[int, int]:
    """Returns leader epoch and end offset of the log as log recovery would leave it.

    The log ends before the first batch of the last segment that is torn or corrupt.
    """
    segments = sorted(one for one in folder.glob("*.log") if one.stem.isdigit())
    end, last = 0, None
    if segments:
        end, last = int(segments[-1].stem), _last_batch(segments[-1])
        end = end if last is None else last.next_offset
    for segment in reversed(segments[:-1]):
        # A new segment has no batch, and compaction may have removed all batches of another one.
        last = last or _last_batch(segment)
    epoch = NO_EPOCH if last is None else last.leader_epoch
    known_to = -1 if last is None else last.base_offset
    # Compaction may have removed all batches of a later epoch, which only the epoch file has then. That file has no
    # checksum, and a truncation that was killed leaves rows, so rows that contradict a batch are ignored.
    rows = read_rows(OsFileSystem(), str(folder / EPOCHS_FILE), columns=2)
    return max((int(one) for one, start in rows if known_to < int(start) < end), default=epoch), end


def _last_batch(segment: Path) -> BatchHeader | None:
    """Returns the last batch before the first one that is torn or corrupt."""
    problems: list[Problem] = []
    last = None
    with mapped(segment) as data:
        for (_, header), batch in walk_segment(data, segment, problems):
            if batch_crc(batch) != header.crc:
                break
            last = header
    return last


def _of_lines(path: Path) -> Iterator[LogEnd]:
    for line in path.read_text().splitlines():
        end = None
        with suppress(ValueError, TypeError):
            end = LogEnd(**json.loads(line))
        if end is None:
            raise CorruptLog(f"{path} is neither a data directory nor the output of `headrace log ends --json`")
        yield end
