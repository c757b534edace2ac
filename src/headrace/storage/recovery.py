"""Opening a partition's folder: what can be trusted, what is checked, what is cut.

Below the recovery point everything was on disk once: a batch that is bad there is damage, kept as a hole and said
aloud, never cut. Past it, a crash may have left half a write: the log ends before the first bad batch, and what was
cut is logged. After a clean shutdown the recovery point is the end of the log.
"""

import logging
import os
from dataclasses import dataclass

from headrace.model.configs import LogConfig
from headrace.model.errors import CorruptLog
from headrace.records.batch import NO_SEQUENCE, BatchHeader, batch_crc
from headrace.storage.epoch_check import confirmed_epochs, read_epochs
from headrace.storage.files import Durable, Files, NewFile, NewName
from headrace.storage.log import Log, note_marker
from headrace.storage.partition_metadata import FILE_NAME as METADATA_FILE
from headrace.storage.producer_snapshot import newest_snapshot, remove_snapshots, remove_stray_snapshots
from headrace.storage.producer_state import ProducerStates
from headrace.storage.segment import Segment, segment_name
from headrace.storage.segment_check import UNKNOWN, Bounds, Hole, check_segment, header_at
from headrace.storage.segment_files import SEGMENT_SUFFIXES
from headrace.storage.segment_loading import load_indexes
from headrace.storage.segment_swap import finish_swaps

log = logging.getLogger(__name__)

# What a crash in the middle of replacing a file leaves behind; the file itself is the old one then.
TEMPORARY_SUFFIX = ".tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the log dir remembers of a partition from before."""

    recovery_point: int = 0
    log_start_offset: int = 0
    clean: bool = False


def open_log(files: Files, directory: str, config: LogConfig, checkpoint: Checkpoint, *, now_ms: int) -> Log:
    """The log in `directory`, ready for appends. What is found in it is on disk when this returns."""
    names_before = [] if checkpoint.clean else files.list(directory)
    opened = _open(files, directory, config, checkpoint, now_ms)
    names = _names_of(files, directory, checkpoint)
    if checkpoint.clean:
        opened.sync_first(names)
    elif opened.log_end_offset <= checkpoint.recovery_point:
        opened.sync_first([*names, opened.active.file])  # half a write that was cut is cut for good
    else:
        _sync(opened, names, checkpoint)
    if opened.holes if checkpoint.clean else files.list(directory) != names_before:
        files.sync_dir(directory)  # else a segment that was dropped could come back beside its successor
    return opened


def _names_of(files: Files, directory: str, checkpoint: Checkpoint) -> list[Durable]:
    """Names that the last process may have left without a sync: of segments, and of a folder that was never synced."""
    names: list[Durable] = []
    if not checkpoint.clean or not checkpoint.recovery_point:
        names.append(NewName(files, directory))
    if not checkpoint.recovery_point:
        names.append(NewName(files, os.path.dirname(directory)))
        metadata = f"{directory}/{METADATA_FILE}"
        if files.exists(metadata):
            names.append(NewFile(files, metadata))
    return names


def _sync(opened: Log, names: list[Durable], checkpoint: Checkpoint) -> None:
    """A process that was killed leaves what no disk has seen yet. From now on it is served, so it has to stay."""
    for name in names:
        name.sync()
    for segment in opened.segments:
        if segment.next_offset > checkpoint.recovery_point:
            segment.file.sync()


def _open(files: Files, directory: str, config: LogConfig, checkpoint: Checkpoint, now_ms: int) -> Log:
    bases = _sweep_and_list(files, directory)
    if not bases:
        log.warning("%s has no segments; starting an empty log there", directory)
        empty = _empty_log(files, directory, config, checkpoint, now_ms)
        empty.was_opened_without_segments = True
        return empty
    segments = [
        Segment(files, directory, base, index_interval_bytes=config.index_interval_bytes, create=False, now_ms=now_ms)
        for base in bases
    ]
    epochs = read_epochs(files, directory)
    for segment in segments:
        segment.epochs = epochs
    segments = _load_segments(files, segments, checkpoint, may_have_gaps=config.compacts)
    lost = _lost_tail(segments[-1], checkpoint)
    if lost is not None:
        segments.append(_segment_after(files, directory, lost.next_offset, config, now_ms))
    log_start = max(checkpoint.log_start_offset, segments[0].base_offset)
    opened = Log(
        files,
        directory,
        config,
        segments=segments,
        log_start_offset=log_start,
        recovery_point=segments[-1].next_offset,
        producers=rebuild_producers(files, directory, segments),
        epochs=confirmed_epochs(files, directory, segments, log_start, epochs),
        holes=[lost] if lost is not None else [],
    )
    _doubt_first_batches(opened)
    opened.epochs.truncate_from_end(opened.log_end_offset)
    remove_stray_snapshots(files, directory, bases)
    for segment in opened.advance_log_start(opened.log_start_offset):
        _remove_files_of(files, directory, segment.base_offset)
    return opened


def _empty_log(files: Files, directory: str, config: LogConfig, checkpoint: Checkpoint, now_ms: int) -> Log:
    # Offsets that were handed out once are never handed out again, even when their bytes are lost.
    base = max(checkpoint.recovery_point, checkpoint.log_start_offset)
    lost = Hole(0, 0, checkpoint.log_start_offset, base, "its segments are gone")
    fresh = _segment_after(files, directory, base, config, now_ms)
    return Log(
        files,
        directory,
        config,
        segments=[fresh],
        log_start_offset=base,
        recovery_point=base,
        producers=ProducerStates(),
        epochs=confirmed_epochs(files, directory, [fresh], base, read_epochs(files, directory)),
        holes=[lost] if base > checkpoint.log_start_offset else [],
    )


def _segment_after(files: Files, directory: str, base: int, config: LogConfig, now_ms: int) -> Segment:
    return Segment(files, directory, base, index_interval_bytes=config.index_interval_bytes, create=True, now_ms=now_ms)


def _sweep_and_list(files: Files, directory: str) -> list[int]:
    """Base offsets of the segments, ascending; interrupted work is completed or undone first."""
    finish_swaps(files, directory)
    names = files.list(directory)
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            files.remove(f"{directory}/{name}")
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


def _remove_files_of(files: Files, directory: str, base_offset: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        path = f"{directory}/{segment_name(base_offset)}{suffix}"
        if files.exists(path):
            files.remove(path)


# Segments


def _load_segments(
    files: Files, segments: list[Segment], checkpoint: Checkpoint, *, may_have_gaps: bool
) -> list[Segment]:
    """Each segment trusted or checked; ends early, dropping what follows, where the log turns out to end."""
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if checkpoint.clean or (following is not None and following <= checkpoint.recovery_point):
            _trust(segment, checkpoint, following, may_have_gaps=may_have_gaps)
            continue
        end = UNKNOWN if following is None else following
        is_whole = check_segment(segment, Bounds(end, checkpoint.recovery_point, may_end_in_gap=may_have_gaps))
        if not is_whole or (segment.next_offset < end and not may_have_gaps):
            _drop_after(files, segments, number)
            return segments[: number + 1]
    return segments


def _trust(segment: Segment, checkpoint: Checkpoint, following: int | None, *, may_have_gaps: bool) -> None:
    """Take the index files at their word where they fit the log file; otherwise look at every batch.

    A segment ends where the next one begins, the last one at the recovery point of a clean shutdown; only what Kafka
    compacted may end earlier.
    """
    end = following if following is not None else checkpoint.recovery_point or UNKNOWN
    if not segment.size and end in (UNKNOWN, segment.base_offset):
        return
    if _loads(segment) and (end in (UNKNOWN, segment.next_offset) or (may_have_gaps and segment.next_offset < end)):
        return
    log.warning("%s: checking it and building its indexes anew", segment.path)
    check_segment(segment, Bounds(end, end, may_be_cut=False, may_end_in_gap=may_have_gaps))
    if following is not None and segment.next_offset < following and not may_have_gaps:
        lost = Hole(segment.size, segment.size, segment.next_offset, following, "the file was longer once")
        log.error("%s: offsets %d to %d are lost: %s", segment.path, lost.base_offset, following - 1, lost.reason)
        segment.note_hole(lost)
        segment.next_offset = following


def _loads(segment: Segment) -> bool:
    try:
        return load_indexes(segment)
    except CorruptLog as damage:
        log.error("%s", damage)
        return False


def _doubt_first_batches(opened: Log) -> None:
    """The only batch of a segment had no neighbour to confirm its leader epoch, and the epochs were not confirmed yet.

    Where the two differ now, whoever wants to read the batch has it checked again.
    """
    for segment in opened.segments:
        header = header_at(segment.file, 0) if segment.checked else None
        if header is not None and header.leader_epoch != opened.epochs.epoch_of(header.base_offset):
            segment.checked.clear()


def _drop_after(files: Files, segments: list[Segment], number: int) -> None:
    for segment in segments[number + 1 :]:
        log.warning("%s: dropped, it follows a torn write", segment.path)
        segment.close()
        _remove_files_of(files, segment.directory, segment.base_offset)


def _lost_tail(last: Segment, checkpoint: Checkpoint) -> Hole | None:
    """Offsets that were on disk once and are not any more: somebody shortened the file."""
    reached = max(checkpoint.recovery_point, checkpoint.log_start_offset)
    if last.next_offset >= reached:
        return None
    reason = f"the log ends at {last.next_offset}, but {reached} had been reached"
    log.error("%s: %s; the lost offsets are not handed out again", last.directory, reason)
    return Hole(last.size, last.size, last.next_offset, reached, reason)


# Producers


def rebuild_producers(files: Files, directory: str, segments: list[Segment]) -> ProducerStates:
    """The newest snapshot that can be read, and every batch since; aborted transactions are indexed on the way."""
    end = segments[-1].next_offset
    remove_snapshots(files, directory, after=end)  # they speak of batches that were cut
    bad = _first_bad_txn_index(segments)
    if bad is not None:
        # For good, and before the index goes: a later start that found one of them, and only a part of the new index on
        # disk, would take that for all of it.
        remove_snapshots(files, directory, after=bad.base_offset)
        files.sync_dir(directory)
        bad.aborted.forget_from(bad.base_offset)
    snapshot = newest_snapshot(files, directory, end)
    states, since = (ProducerStates.from_rows(snapshot[1]), snapshot[0]) if snapshot else (ProducerStates(), 0)
    for segment in segments:
        if segment.next_offset <= since:
            continue
        position = segment.position_of(since) if since > segment.base_offset else 0
        segment.aborted.forget_from(max(since, segment.base_offset))
        try:
            for at, header in segment.headers(position):
                if (header.producer_id >= 0 or header.is_transactional) and header.base_offset >= since:
                    _replay(states, segment, at, header)
        except CorruptLog as damage:
            log.error("%s; producers that wrote after it are taken as new", damage)
    return states


def _first_bad_txn_index(segments: list[Segment]) -> Segment | None:
    """The first whose index of aborted transactions makes no sense: from there on it is written again."""
    for segment in segments:
        try:
            segment.aborted.check()
        except CorruptLog as damage:
            log.warning("%s; indexing the aborted transactions again", damage)
            return segment
    return None


def _replay(states: ProducerStates, segment: Segment, position: int, header: BatchHeader) -> None:
    if not header.is_control:
        if header.base_sequence == NO_SEQUENCE or header.producer_id < 0:
            _intact(segment, position, header)  # a coordinator's own; or a marker, or somebody's, before a bit flipped
        states.applied(header)
        return
    from headrace.records.control import read_marker

    marker = read_marker(_intact(segment, position, header), header)
    if marker is None:
        states.applied_emptied_marker(header)
    else:
        note_marker(states, segment, header, marker)


def _intact(segment: Segment, position: int, header: BatchHeader) -> bytes:
    """A batch that decides over many others: it is not believed when its bytes have changed."""
    batch = segment.file.read(position, header.total_bytes)
    if batch_crc(batch) != header.crc:
        raise CorruptLog(f"{segment.path}: the batch at byte {position} fails its checksum")
    return batch
