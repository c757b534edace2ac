"""Opening a partition's folder: what can be trusted, what is checked, what is cut.

Below the recovery point everything was on disk once: a batch that is bad there is damage, kept as a hole and said
aloud, never cut. Past it, a crash may have left half a write: the log ends before the first bad batch, and what was
cut is logged. After a clean shutdown the recovery point is the end of the log.
"""

import logging
import os
from dataclasses import dataclass

from headrace.model.configs import LogConfig
from headrace.model.errors import CorruptLog, HeadraceError
from headrace.records.batch import HEADER_BYTES, BatchHeader, batch_crc
from headrace.storage.files import Durable, Files, NewFile, NewName
from headrace.storage.leader_epochs import LeaderEpochs
from headrace.storage.log import SEGMENT_SUFFIXES, Log
from headrace.storage.partition_metadata import FILE_NAME as METADATA_FILE
from headrace.storage.producer_snapshot import newest_snapshot, remove_snapshots, remove_stray_snapshots
from headrace.storage.producer_state import ProducerStates
from headrace.storage.segment import Hole, Segment, segment_name
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
    names_before = files.list(directory)
    opened = _open(files, directory, config, checkpoint, now_ms)
    names = _names_of(files, directory) if not checkpoint.recovery_point else []
    if checkpoint.clean or opened.log_end_offset <= checkpoint.recovery_point:
        opened.sync_first(names)
    else:
        _sync(opened, names, checkpoint)
    if files.list(directory) != names_before:
        files.sync_dir(directory)  # else a segment that was dropped could come back beside its successor
    return opened


def _names_of(files: Files, directory: str) -> list[Durable]:
    """What makes the folder of a log that was perhaps never synced be there after a power cut."""
    names: list[Durable] = [NewName(files, os.path.dirname(directory)), NewName(files, directory)]
    metadata = f"{directory}/{METADATA_FILE}"
    return [NewFile(files, metadata), *names] if files.exists(metadata) else names


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
        return _empty_log(files, directory, config, checkpoint, now_ms)
    segments = [
        Segment(files, directory, base, index_interval_bytes=config.index_interval_bytes, create=False, now_ms=now_ms)
        for base in bases
    ]
    segments = _load_segments(files, segments, checkpoint)
    lost = _lost_tail(segments[-1], checkpoint)
    if lost is not None:
        segments.append(_segment_after(files, directory, lost.next_offset, config, now_ms))
    opened = Log(
        files,
        directory,
        config,
        segments=segments,
        log_start_offset=max(checkpoint.log_start_offset, segments[0].base_offset),
        recovery_point=segments[-1].next_offset,
        producers=_rebuild_producers(files, directory, segments),
        epochs=LeaderEpochs(files, directory),
        holes=[lost] if lost is not None else [],
    )
    opened.epochs.truncate_from_end(opened.log_end_offset)
    remove_stray_snapshots(files, directory, bases)
    for segment in opened.advance_log_start(opened.log_start_offset):
        _remove_files_of(files, directory, segment.base_offset)
    return opened


def _empty_log(files: Files, directory: str, config: LogConfig, checkpoint: Checkpoint, now_ms: int) -> Log:
    # Offsets that were handed out once are never handed out again, even when their bytes are lost.
    base = max(checkpoint.recovery_point, checkpoint.log_start_offset)
    return Log(
        files,
        directory,
        config,
        segments=[_segment_after(files, directory, base, config, now_ms)],
        log_start_offset=base,
        recovery_point=base,
        producers=ProducerStates(),
        epochs=LeaderEpochs(files, directory),
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


def _load_segments(files: Files, segments: list[Segment], checkpoint: Checkpoint) -> list[Segment]:
    """Each segment trusted or checked; ends early, dropping what follows, where the log turns out to end."""
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        below_recovery_point = following is not None and following <= checkpoint.recovery_point
        if checkpoint.clean or below_recovery_point:
            _trust(segment, following)
            continue
        if not _check_and_cut(segment, checkpoint.recovery_point):
            _drop_after(files, segments, number)
            return segments[: number + 1]
    return segments


def _trust(segment: Segment, following: int | None) -> None:
    """Take the index files at their word where they fit the log file; otherwise index the headers again."""
    if not segment.size:
        return
    if segment.offset_index.load() and segment.time_index.load() and _index_fits(segment):
        try:
            _catch_up_from_index(segment)
            return
        except CorruptLog as damage:
            log.error("%s", damage)
    _index_again(segment, following)


def _index_fits(segment: Segment) -> bool:
    last = segment.offset_index.last
    return last is None or (last[1] + HEADER_BYTES <= segment.size and last[0] >= 0)


def _catch_up_from_index(segment: Segment) -> None:
    segment.refresh_max_timestamp()
    first = next(iter(segment.headers()), None)
    if first is not None:
        segment.first_timestamp = first[1].max_timestamp
    last = segment.offset_index.last
    for _, header in segment.headers(last[1] if last else 0):
        segment.next_offset = header.next_offset


def _index_again(segment: Segment, following: int | None) -> None:
    log.warning("%s: rebuilding its indexes", segment.path)
    segment.offset_index.clear()
    segment.time_index.clear()
    segment.max_timestamp = -1
    try:
        for position, header in segment.headers():
            segment.index_batch(position, header)
    except CorruptLog as damage:
        log.error("%s; what follows in this segment cannot be found", damage)
        end = following if following is not None else segment.next_offset
        segment.holes.append(Hole(segment.size, segment.size, segment.next_offset, end, str(damage)))
    segment.persist_indexes()


def _check_and_cut(segment: Segment, recovery_point: int) -> bool:
    """Check every batch; False when the segment was cut, so nothing may follow it."""
    # An index that was not synced may hold anything; it is only worth keeping to jump over damage.
    old_index = segment.offset_index
    old_index.load()
    jumps = [old_index.entry(number)[1] for number in range(len(old_index))]
    segment.offset_index.clear()
    segment.time_index.clear()
    position = 0
    while position < segment.size:
        position, reason = _check_from(segment, position)
        if position >= segment.size:
            break
        if segment.next_offset >= recovery_point:
            cut = segment.size - position
            log.warning("%s: cut %d bytes at byte %d: %s", segment.path, cut, position, reason)
            segment.truncate(position, segment.next_offset)
            segment.persist_indexes()
            return False
        position = _jump_over_damage(segment, position, jumps, recovery_point, reason)
    segment.persist_indexes()
    return True


def _check_from(segment: Segment, start: int) -> tuple[int, str]:
    """Index good batches from `start` on; where the first bad one is, and what is wrong with it."""
    position = start
    while position < segment.size:
        try:
            found = next(iter(segment.headers(position)), None)
        except CorruptLog as damage:
            return position, str(damage)
        if found is None:
            return position, "the file ends in the middle of a batch"
        header = found[1]
        if header.base_offset < segment.next_offset:
            return position, f"offset {header.base_offset} after offset {segment.next_offset - 1}"
        if batch_crc(segment.file.read(position, header.total_bytes)) != header.crc:
            return position, "the checksum is wrong"
        if segment.first_timestamp < 0:
            segment.first_timestamp = header.max_timestamp
        segment.index_batch(position, header)
        position += header.total_bytes
        segment.note_checked(position - header.total_bytes, position)
    return position, ""


def _jump_over_damage(segment: Segment, position: int, jumps: list[int], recovery_point: int, reason: str) -> int:
    """Keep the damaged bytes as a hole and go on at the next batch start that the old index knows."""
    for jump in jumps:
        if jump > position and (found := _good_batch_at(segment, jump)) is not None:
            next_offset, end = found.base_offset, jump
            break
    else:
        next_offset, end = max(recovery_point, segment.next_offset), segment.size
    log.error(
        "%s: offsets %d to %d are damaged (%s); they are kept and not served",
        segment.path,
        segment.next_offset,
        next_offset - 1,
        reason,
    )
    segment.holes.append(Hole(position, end, segment.next_offset, next_offset, reason))
    segment.next_offset = next_offset
    return end


def _good_batch_at(segment: Segment, position: int) -> BatchHeader | None:
    try:
        for _, header in segment.headers(position):
            good = batch_crc(segment.file.read(position, header.total_bytes)) == header.crc
            return header if good and header.base_offset >= segment.next_offset else None
    except HeadraceError:
        return None
    return None


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


def _rebuild_producers(files: Files, directory: str, segments: list[Segment]) -> ProducerStates:
    """The newest snapshot that can be read, and every batch since."""
    end = segments[-1].next_offset
    remove_snapshots(files, directory, after=end)  # they speak of batches that were cut
    snapshot = newest_snapshot(files, directory, end)
    states, since = (ProducerStates.from_rows(snapshot[1]), snapshot[0]) if snapshot else (ProducerStates(), 0)
    for segment in segments:
        if segment.next_offset <= since:
            continue
        position = segment.position_of(since) if since > segment.base_offset else 0
        try:
            for at, header in segment.headers(position):
                if header.producer_id >= 0 and header.base_offset >= since:
                    _replay(states, segment, at, header)
        except CorruptLog as damage:
            log.error("%s; producers that wrote after it are taken as new", damage)
    return states


def _replay(states: ProducerStates, segment: Segment, position: int, header: BatchHeader) -> None:
    if not header.is_control:
        states.applied(header)
        return
    from headrace.records.control import read_marker

    marker = read_marker(segment.file.read(position, header.total_bytes), header)
    if marker is None:
        states.applied_emptied_marker(header)
    else:
        states.applied_marker(header, aborted=not marker.commits, coordinator_epoch=marker.coordinator_epoch)
