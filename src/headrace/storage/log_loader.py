"""Opens a log: recovers its segments, leader epochs and producer states after a crash or a clean shutdown.

A segment whose index files match its batches is loaded without reading every batch.

Below the recovery point every record was synced: a batch that is invalid there is corrupt. It becomes an unreadable
offset range, is logged as an error, and is never truncated. Past the recovery point a crash may have left a partial
write: the log is truncated at the first invalid batch, and the truncation is logged. After a power loss that may be
any batch, because pages reach the disk in any order. After a process crash it can only be the last one: an invalid
batch before a valid one is corrupt there, too. After a clean shutdown the recovery point is the end of the log.
"""

import logging
import os
from dataclasses import dataclass
from itertools import zip_longest

from headrace.config.values import LogConfig
from headrace.model.errors import CorruptLog, StorageError
from headrace.records.batch import BatchHeader
from headrace.storage.directory.partition_metadata_file import FILE_NAME as METADATA_FILE
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME as EPOCHS_FILE
from headrace.storage.epoch.leader_epoch_recovery import confirmed_epochs, read_epochs
from headrace.storage.io.file_system import DirectorySync, Durable, FileSync, FileSystem
from headrace.storage.log import Log
from headrace.storage.producer.producer_snapshot_file import remove_snapshots, remove_stray_snapshots, snapshot_path
from headrace.storage.producer.producer_state_loader import rebuild_producers
from headrace.storage.producer.producer_state_manager import ProducerStateManager
from headrace.storage.segment.file_names import parse_file_name
from headrace.storage.segment.log_segment import LogSegment, segment_name
from headrace.storage.segment.segment_replacement import INDEX_SUFFIXES, SEGMENT_SUFFIXES, finish_swaps
from headrace.storage.segment.segment_verifier import (
    UNKNOWN,
    CorruptRange,
    SegmentBounds,
    check_segment,
    header_at,
    is_time_entry_valid,
)


def load_indexes(segment: LogSegment) -> bool:
    """Loads the indexes and the segment's summary from the index files.

    Returns False if they do not match the batches.
    """
    if not (segment.offset_index.load() and segment.time_index.load()):
        return False
    last = segment.offset_index.last
    tail = list(segment.headers(last[1] if last else 0))
    if not tail or (last is not None and tail[0][1].last_offset != segment.base_offset + last[0]):
        return False
    if not _ascend(segment.base_offset, tail):
        return False
    segment.next_offset, segment.last_epoch = tail[-1][1].next_offset, tail[-1][1].leader_epoch
    first = tail[0][1] if last is None else header_at(segment.file, 0)
    if first is None or not _load_times(segment, tail):
        return False
    segment.first_timestamp, segment.first_epoch = first.max_timestamp, first.leader_epoch
    return True


def _ascend(base_offset: int, tail: list[tuple[int, BatchHeader]]) -> bool:
    """Returns whether the base offsets ascend: the checksum of a batch does not cover its base offset."""
    for _, header in tail:
        if header.base_offset < base_offset:
            return False
        base_offset = header.next_offset
    return True


def _load_times(segment: LogSegment, tail: list[tuple[int, BatchHeader]]) -> bool:
    """Sets the maximum timestamp from the last entry of the time index; its batch is usually at the end."""
    youngest = segment.time_index.last
    if youngest is not None:
        offset = segment.base_offset + youngest[1]
        for number, (_, header) in enumerate(tail):
            if header.base_offset <= offset <= header.last_offset and header.max_timestamp == youngest[0]:
                segment.max_timestamp, segment.max_timestamp_offset = youngest[0], offset
                segment.note_times(tail[number:])
                return True
        if not is_time_entry_valid(segment, youngest):
            return False
    segment.refresh_max_timestamp()
    return True


log = logging.getLogger(__name__)

# Left by a crash during the replacement of a file; the file itself then has its old content.
TEMPORARY_SUFFIX = ".tmp"
TEMPORARY_FILES = {name + TEMPORARY_SUFFIX for name in (EPOCHS_FILE, METADATA_FILE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Persisted recovery state of a partition in the log directory."""

    recovery_point: int = 0
    log_start_offset: int = 0
    clean: bool = False
    same_boot_as_last_run: bool = True  # whether unsynced writes of the last process are still in the page cache
    is_kafkas: bool = False  # no headrace broker has used the directory: Kafka's compaction leaves gaps after segments


def open_log(files: FileSystem, directory: str, config: LogConfig, checkpoint: Checkpoint, *, now_ms: int) -> Log:
    """Opens the log in `directory` for appends. Its content is synced when this returns."""
    names_before = [] if checkpoint.clean else files.list(directory)
    opened = _open(files, directory, config, checkpoint, now_ms)
    names = _names_of(files, directory, checkpoint)
    if checkpoint.clean:
        opened.flush_before_next(names)
        # The snapshot of the clean shutdown was corrupt, or referred to a corrupt index: the next stop writes it again.
        has_snapshot = files.exists(snapshot_path(directory, opened.log_end_offset))
        opened.has_changed = opened.log_end_offset > opened.log_start_offset and not has_snapshot
    elif opened.log_end_offset <= checkpoint.recovery_point:
        opened.flush_before_next([*names, opened.active.file])  # makes the truncation of a partial write durable
        opened.has_changed = True  # also if the log is closed before the next append
    else:
        _sync(opened, names, checkpoint)
    if opened.holes if checkpoint.clean else files.list(directory) != names_before:
        files.sync_dir(directory)  # otherwise a segment that was dropped could reappear next to its successor
    return opened


def _names_of(files: FileSystem, directory: str, checkpoint: Checkpoint) -> list[Durable]:
    """Returns directory entries that the last process may not have synced: of segments, and of a new directory."""
    names: list[Durable] = []
    if not checkpoint.clean or not checkpoint.recovery_point:
        names.append(DirectorySync(files, directory))
    epochs = f"{directory}/{EPOCHS_FILE}"
    if not checkpoint.clean and files.exists(epochs):
        names.append(FileSync(files, epochs))  # the batches that the file describes are served from now on
    if not checkpoint.recovery_point:
        names.append(DirectorySync(files, os.path.dirname(directory)))
        metadata = f"{directory}/{METADATA_FILE}"
        if files.exists(metadata):
            names.append(FileSync(files, metadata))
    return names


def _sync(opened: Log, names: list[Durable], checkpoint: Checkpoint) -> None:
    """Syncs what a crashed process has written without a sync. It is served from now on, so it must be durable."""
    for name in names:
        name.sync()
    for segment in opened.segments:
        if segment.next_offset > checkpoint.recovery_point:
            try:
                segment.file.sync()
            except StorageError:
                # The unwritten pages are marked as clean. The next start would read them, and its sync would succeed
                # without writing them.
                segment.file.write_again()
                raise


def _open(files: FileSystem, directory: str, config: LogConfig, checkpoint: Checkpoint, now_ms: int) -> Log:
    bases = _without_deleted(files, directory, _sweep_and_list(files, directory), checkpoint.log_start_offset)
    if not bases:
        log.warning("%s has no segments; starting an empty log there", directory)
        return _empty_log(files, directory, config, checkpoint, now_ms)
    segments = [
        LogSegment(
            files, directory, base, index_interval_bytes=config.index_interval_bytes, create=False, now_ms=now_ms
        )
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
        epochs=confirmed_epochs(
            files,
            directory,
            segments,
            log_start,
            epochs,
            unsynced_from=None if checkpoint.same_boot_as_last_run else checkpoint.recovery_point,
        ),
        holes=[lost] if lost is not None else [],
    )
    _doubt_first_batches(opened)
    opened.epochs.truncate_from_end(opened.log_end_offset)
    remove_stray_snapshots(files, directory, bases)
    for segment in opened.advance_log_start(opened.log_start_offset):
        _remove_files_of(files, directory, segment.base_offset)
    return opened


def _empty_log(files: FileSystem, directory: str, config: LogConfig, checkpoint: Checkpoint, now_ms: int) -> Log:
    # Assigned offsets are never assigned again, even if their records are lost.
    base = max(checkpoint.recovery_point, checkpoint.log_start_offset)
    lost = CorruptRange(0, 0, checkpoint.log_start_offset, base, "its segments are missing")
    fresh = _segment_after(files, directory, base, config, now_ms)
    remove_snapshots(files, directory, after=-1)  # Snapshots of lost records must not describe the next ones.
    return Log(
        files,
        directory,
        config,
        segments=[fresh],
        log_start_offset=base,
        recovery_point=base,
        producers=ProducerStateManager(),
        epochs=confirmed_epochs(files, directory, [fresh], base, read_epochs(files, directory)),
        holes=[lost] if base > checkpoint.log_start_offset else [],
    )


def _segment_after(files: FileSystem, directory: str, base: int, config: LogConfig, now_ms: int) -> LogSegment:
    return LogSegment(
        files, directory, base, index_interval_bytes=config.index_interval_bytes, create=True, now_ms=now_ms
    )


def _sweep_and_list(files: FileSystem, directory: str) -> list[int]:
    """Returns the base offsets of the segments, ascending, after interrupted swaps were completed or rolled back."""
    finish_swaps(files, directory)
    names = files.list(directory)
    found = {name: parsed for name in names if (parsed := parse_file_name(name)) is not None}
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX) and (name in found or name in TEMPORARY_FILES):
            files.remove(f"{directory}/{name}")
    bases = {one.offset for one in found.values() if one.kind == ".log"}
    for name, one in found.items():
        # An interrupted removal leaves indexes without their log. The next segment of that name would use them.
        if one.kind in INDEX_SUFFIXES and one.offset not in bases:
            files.remove(f"{directory}/{name}")
    return sorted(bases)


def _without_deleted(files: FileSystem, directory: str, bases: list[int], log_start: int) -> list[int]:
    """Removes segments below the log start before the remaining ones are checked for gaps.

    A segment whose removal failed earlier may be the only one left before a gap.
    """
    kept = []
    for base, following in zip_longest(bases, bases[1:]):
        if following is not None and following <= log_start:
            _remove_files_of(files, directory, base)
        else:
            kept.append(base)
    return kept


def _remove_files_of(files: FileSystem, directory: str, base_offset: int) -> None:
    for suffix in SEGMENT_SUFFIXES:
        path = f"{directory}/{segment_name(base_offset)}{suffix}"
        if files.exists(path):
            files.remove(path)


# Segments


def _load_segments(
    files: FileSystem, segments: list[LogSegment], checkpoint: Checkpoint, *, may_have_gaps: bool
) -> list[LogSegment]:
    """Loads each segment by its indexes or by a check of its batches; drops what follows a truncated segment."""
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        if checkpoint.clean or (following is not None and following <= checkpoint.recovery_point):
            _trust(segment, checkpoint, following, may_have_gaps=may_have_gaps)
            continue
        end = UNKNOWN if following is None else following
        bounds = SegmentBounds(
            end,
            checkpoint.recovery_point,
            may_end_in_gap=may_have_gaps,
            tears_last_write_only=checkpoint.same_boot_as_last_run,
        )
        is_whole = check_segment(segment, bounds)
        if following is not None and checkpoint.same_boot_as_last_run:
            _note_lost_end(segment, following, may_have_gaps=may_have_gaps)
        elif not is_whole or (segment.next_offset < end and not (may_have_gaps and checkpoint.is_kafkas)):
            _drop_after(files, segments, number)
            return segments[: number + 1]
    return segments


def _trust(segment: LogSegment, checkpoint: Checkpoint, following: int | None, *, may_have_gaps: bool) -> None:
    """Loads the index files if they match the log file; otherwise checks every batch.

    A segment ends where the next one begins, the last one at the recovery point of a clean shutdown. Only a segment
    that Kafka compacted may end earlier.
    """
    end = following if following is not None else checkpoint.recovery_point or UNKNOWN
    if not segment.size and end in (UNKNOWN, segment.base_offset):
        return
    if _loads(segment) and (end in (UNKNOWN, segment.next_offset) or (may_have_gaps and segment.next_offset < end)):
        return
    log.warning("%s: checking it and rebuilding its indexes", segment.path)
    check_segment(segment, SegmentBounds(end, end, may_be_cut=False, may_end_in_gap=may_have_gaps))
    if following is not None:
        _note_lost_end(segment, following, may_have_gaps=may_have_gaps)


def _note_lost_end(segment: LogSegment, following: int, *, may_have_gaps: bool) -> None:
    if segment.next_offset < following and not may_have_gaps:
        lost = CorruptRange(segment.size, segment.size, segment.next_offset, following, "the file was longer once")
        log.error("%s: offsets %d to %d are lost: %s", segment.path, lost.base_offset, following - 1, lost.reason)
        segment.note_hole(lost)
        segment.next_offset = following


def _loads(segment: LogSegment) -> bool:
    try:
        return load_indexes(segment)
    except CorruptLog as damage:
        log.error("%s", damage)
        return False


def _doubt_first_batches(opened: Log) -> None:
    """Discards the check of batches that are alone in their segment and contradict the leader epochs.

    No neighboring batch confirmed their leader epoch, and they were checked before the epochs were confirmed. A
    fetch checks them again.
    """
    for segment in opened.segments:
        header = header_at(segment.file, 0) if segment.checked else None
        if header is not None and header.leader_epoch != opened.epochs.epoch_of(header.base_offset):
            segment.checked.clear()


def _drop_after(files: FileSystem, segments: list[LogSegment], number: int) -> None:
    for segment in segments[number + 1 :]:
        log.warning("%s: dropped, it follows a torn write", segment.path)
        segment.close()
        _remove_files_of(files, segment.directory, segment.base_offset)


def _lost_tail(last: LogSegment, checkpoint: Checkpoint) -> CorruptRange | None:
    """Returns the offsets that were synced and are missing because the file was shortened; None if there are none."""
    reached = max(checkpoint.recovery_point, checkpoint.log_start_offset)
    if last.next_offset >= reached:
        return None
    reason = f"the log ends at {last.next_offset}, but {reached} had been reached"
    log.error("%s: %s; the lost offsets are not handed out again", last.directory, reason)
    return CorruptRange(last.size, last.size, last.next_offset, reached, reason)
