"""Rebuilds producer states and transaction indexes from the newest snapshot and the batches after it.

Used when a log is opened or truncated. The effect of an unreadable marker is not lost as long as the index has its
entry: the entry was written with the marker, from the complete state.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import CorruptLog, StorageError
from headrace.records.batch import NO_SEQUENCE, BatchHeader, batch_crc
from headrace.storage.io.file_system import FileSystem
from headrace.storage.log import aborted_txn
from headrace.storage.producer.corrupt_markers import corrected_marker, report_doubtful
from headrace.storage.producer.producer_snapshot_file import (
    Appendix,
    Snapshot,
    encode_snapshot,
    newest_snapshot,
    remove_snapshots,
    snapshot_path,
)
from headrace.storage.producer.producer_state_manager import ProducerStateManager
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_verifier import CorruptRange, header_at
from headrace.storage.segment.transaction_index import NO_ENTRIES, AbortedTxn, IndexSum

if TYPE_CHECKING:
    from headrace.records.control import EndMarker

log = logging.getLogger(__name__)

# At the starts of the last segments, as Kafka does: one for the next recovery, and one in case that is unreadable. Each
# has a row for every producer.
SNAPSHOTS_WRITTEN = 2


class ReplayedIndex(NamedTuple):
    """The entries of a segment's transaction index from an offset on."""

    segment: LogSegment
    start: int
    txns: list[AbortedTxn]


class Replayed(NamedTuple):
    """The producer states at an offset, and the indexes of the segments that were read for them."""

    states: ProducerStateManager
    indexes: list[ReplayedIndex]


class NewHoles(Exception):
    """Raised by a replay, which changes nothing: a segment has corrupt ranges that the log has not recorded yet."""

    def __init__(self, segment: LogSegment, holes: list[CorruptRange]) -> None:
        super().__init__(f"{segment.path}: {len(holes)} corrupt ranges")
        self.segment = segment
        self.holes = holes


def rebuild_producers(files: FileSystem, directory: str, segments: list[LogSegment]) -> ProducerStateManager:
    """Returns the newest readable snapshot plus every batch since; rewrites transaction indexes where needed.

    For a log that is being opened: repairs what it finds, and blocks on the disk.
    """
    end = segments[-1].next_offset
    remove_snapshots(files, directory, after=end)  # they describe records that were truncated
    snapshot = newest_snapshot(files, directory, end, at_least=segments[0].base_offset)
    while bad := _bad_txn_indexes(segments, snapshot):
        # Durably, and before the indexes are removed: a later start with one of the snapshots and a part of the new
        # index would treat that part as complete.
        remove_snapshots(files, directory, after=bad[0].base_offset)
        files.sync_dir(directory)
        for segment in bad:
            segment.aborted.forget_from(segment.base_offset)
        # Again: an older snapshot lists entries that compaction has removed since. Compaction corrects only the newest
        # one.
        snapshot = newest_snapshot(files, directory, end, at_least=segments[0].base_offset)
    states, since = _states_of(snapshot), snapshot.offset if snapshot else 0
    segments[-1].aborted.forget_past(end)  # entries whose marker is missing after a crash or a failed append
    for number, segment in enumerate(segments):
        if segment.next_offset <= since:
            segment.aborted.trust(_expected_sum(segment, snapshot))
            continue
        replay = _Replay(
            states, segment, segments, since, segment.aborted.entries_from(max(since, segment.base_offset))
        )
        replay.run(_reindexed)
        segment.aborted.rewrite_from(replay.start, replay.found)
        if segment is not segments[-1]:
            # The active segment's index is synced when the segment rolls; later snapshots depend on these as well.
            for item in segment.aborted.seal():
                item.sync()
            if number + 1 >= len(segments) - SNAPSHOTS_WRITTEN:
                _write_snapshot_behind(files, directory, segments, number, states)
    # Markers that a crash left out of the log have lost their entries. If one came back beside a later marker with its
    # offset, a committed transaction would be hidden.
    for item in segments[-1].aborted.seal():
        item.sync()
    report_doubtful(directory, segments, states)
    return states


def _write_snapshot_behind(
    files: FileSystem, directory: str, segments: Sequence[LogSegment], number: int, states: ProducerStateManager
) -> None:
    """Writes a missing snapshot at the start of the next segment: retention may remove the batches before it."""
    sums = {one.base_offset: one.aborted.sum for one in segments[: number + 1] if one.aborted.sum}
    data = encode_snapshot(states.rows(), Appendix(sums, states.idle_ms()))
    path = snapshot_path(directory, segments[number + 1].base_offset)
    try:
        files.replace(path, data, sync=len(states) > 0)
    except StorageError as error:
        log.warning("Cannot write %s; recovery uses an older snapshot: %s", path, error)


def replay_to(
    files: FileSystem, directory: str, segments: list[LogSegment], end_position: int, end_offset: int
) -> Replayed:
    """Returns the producers at `end_offset`, where the last of the segments has a batch boundary at `end_position`.

    Changes nothing, in memory or on disk, so that it may run in a thread. Raises NewHoles for the caller to record.
    """
    bad = _bad_txn_indexes(segments)
    # Snapshots after an invalid index refer to entries that are missing.
    at_most = min(end_offset, bad[0].base_offset) if bad else end_offset
    first = segments[0].base_offset
    snapshot = newest_snapshot(files, directory, at_most, at_least=first, removes_unreadable=False)
    states, since = _states_of(snapshot), snapshot.offset if snapshot else 0
    indexes: list[ReplayedIndex] = []
    for segment in segments:
        is_last = segment is segments[-1]
        if segment.next_offset <= since or (is_last and end_offset <= since):
            continue
        start = max(since, segment.base_offset)
        replay = _Replay(states, segment, segments, since, _entries_between(segment, start, end_offset))
        if is_last:
            replay.end_before(end_position, end_offset)
        replay.run(_has_no_new_holes)
        indexes.append(ReplayedIndex(segment, start, replay.found))
    return Replayed(states, indexes)


def _entries_between(segment: LogSegment, start: int, end_offset: int) -> list[AbortedTxn]:
    try:
        segment.aborted.check()
    except CorruptLog:
        return []
    return [one for one in segment.aborted.entries_from(start) if one.last_offset < end_offset]


def _reindexed(segment: LogSegment) -> bool:
    """Finds where the corruption begins and ends, and returns True: the replay continues after it."""
    segment.reindex()
    return True


def _has_no_new_holes(segment: LogSegment) -> bool:
    """Raises NewHoles for corruption that is not recorded yet. Else returns False: the replay cannot continue."""
    holes: list[CorruptRange] = []
    position = 0
    while position < segment.size:
        position, hole = segment.inspect(position, segment.size)
        if hole is None:
            break
        if all(known.position != hole.position for known in segment.holes):
            holes.append(hole)
    if holes:
        raise NewHoles(segment, holes)
    return False


def _bad_txn_indexes(segments: list[LogSegment], snapshot: Snapshot | None = None) -> list[LogSegment]:
    """Returns the segments from the first one with an invalid transaction index on; their indexes are rewritten.

    The expected entries of a log that is being opened are those of the snapshot; later its segments have them.
    """
    bad: list[LogSegment] = []
    for segment in segments:
        try:
            if segment.aborted.sum is not None:
                segment.aborted.check()
            else:
                # Entries after the snapshot are compared with the batches. The last index may have surplus entries.
                is_part = snapshot is not None and segment.next_offset > snapshot.offset
                expected = _expected_sum(segment, snapshot)
                segment.aborted.check_as(expected, may_go_on=is_part or segment is segments[-1])
        except CorruptLog as damage:
            log.error("%s; indexing the aborted transactions again, from the batches", damage)
            bad.append(segment)
    return bad


def _states_of(snapshot: Snapshot | None) -> ProducerStateManager:
    if snapshot is None:
        return ProducerStateManager()
    states = ProducerStateManager.from_rows(snapshot.rows)
    if snapshot.appendix is not None:
        states.restore_idle(snapshot.appendix.idle_ms)
    return states


def _expected_sum(segment: LogSegment, snapshot: Snapshot | None) -> IndexSum | None:
    """Returns the sum of the segment's index in the snapshot; None if the snapshot has none."""
    if snapshot is None or snapshot.appendix is None or segment.base_offset >= snapshot.offset:
        return None
    return snapshot.appendix.index_sums.get(segment.base_offset, NO_ENTRIES)


class _Replay:
    """Applies the batches of one segment from an offset on, and finds the entries of its aborted transactions."""

    def __init__(
        self,
        states: ProducerStateManager,
        segment: LogSegment,
        segments: Sequence[LogSegment],
        since: int,
        entries: Iterable[AbortedTxn],
    ) -> None:
        self._states = states
        self._segment = segment
        self._segments = segments  # of the log: a marker lost in one may have ended a transaction of another
        self.start = max(since, segment.base_offset)
        self._end_position: int | None = None  # None: the end of the file
        self._end_offset = segment.next_offset
        self._holes_from = self.start  # corrupt markers below it are applied
        self._expected = 0  # the lowest offset that the next batch can have
        self._entries = iter(entries)
        self._entry = next(self._entries, None)  # the next entry of the existing index
        self.found: list[AbortedTxn] = []  # the entries of the rebuilt index

    def end_before(self, position: int, offset: int) -> None:
        """Ends the replay at this batch boundary."""
        self._end_position, self._end_offset = position, offset

    def run(self, goes_on: Callable[[LogSegment], bool]) -> None:
        """Runs the replay.

        Calls `goes_on` once if the segment is corrupt, which returns whether to continue after that.
        """
        segment = self._segment
        damage = self._replay_from(segment.boundary_before(self.start))
        if damage is not None and goes_on(segment):
            self._expected = 0
            damage = self._replay_from(damage)
        if damage is not None:
            log.error("%s; producers that wrote after it are taken as new", segment.path)
        self._restore_before(self._end_offset, all_of_them=damage is not None)

    def _replay_from(self, position: int) -> int | None:
        """Returns where a batch is corrupt, or None at the end of the segment."""
        at = position
        try:
            for at, header in self._segment.headers(position, self._end_position):
                if header.base_offset >= self.start and (header.producer_id >= 0 or header.is_transactional):
                    self._apply(at, header)
                self._expected = header.next_offset
                at += header.total_bytes
        except CorruptLog as damage:
            log.warning("%s", damage)
            return at
        return None

    def _apply(self, position: int, header: BatchHeader) -> None:
        if not header.is_control:
            if header.base_sequence == NO_SEQUENCE or header.producer_id < 0:
                # written by a coordinator; or a marker, or another batch, with a flipped bit
                self._intact(position, header)
            if header.producer_id < 0:
                return  # accepted by an earlier version: no marker could end its transaction
            self._restore_before(header.base_offset)
            self._states.applied(header)
            return
        from headrace.records.control import read_marker

        marker = read_marker(self._intact(position, header), header)
        self._restore_before(header.base_offset)
        if marker is None:
            self._states.applied_emptied_marker(header)
            return
        self._end(header, marker)

    def _end(self, header: BatchHeader, marker: "EndMarker") -> None:
        ended = self._states.applied_marker(
            header, aborted=not marker.commits, coordinator_epoch=marker.coordinator_epoch
        )
        if marker.commits:
            return
        known = self._entry if self._entry is not None and self._entry.last_offset == header.base_offset else None
        if known is not None and known.producer_id == header.producer_id and any(one.holes for one in self._segments):
            # An earlier marker of the producer may be lost: then more than this transaction seems to end here.
            self.found.append(known)
        elif ended is not None:
            self.found.append(aborted_txn(ended))

    def _restore_before(self, offset: int, *, all_of_them: bool = False) -> None:
        """Applies what is known of the corrupt markers below the offset."""
        for hole in sorted(one for one in self._segment.holes if self._holes_from <= one.base_offset < offset):
            self._holes_from = hole.base_offset + 1
            self._restore_entries_before(hole.base_offset, all_of_them=all_of_them)
            if self._entry is None or self._entry.last_offset >= hole.next_offset:  # else the index has its entry
                corrected = corrected_marker(self._segment, hole)
                if corrected is not None:
                    log.warning(
                        "%s: applied the known content of the corrupt marker at offset %d",
                        self._segment.path,
                        hole.base_offset,
                    )
                    self._end(*corrected)
        self._restore_entries_before(offset, all_of_them=all_of_them)

    def _restore_entries_before(self, offset: int, *, all_of_them: bool) -> None:
        """Keeps the entries below the offset whose markers are corrupt: the transactions stay aborted."""
        while self._entry is not None and self._entry.last_offset < offset:
            entry, self._entry = self._entry, next(self._entries, None)
            if all_of_them or self._segment.hole_at(entry.last_offset) is not None:
                if not self.found or entry.last_offset > self.found[-1].last_offset:
                    self.found.append(entry)
                self._states.applied_lost_abort(entry.producer_id, entry.first_offset, entry.last_offset)

    def _intact(self, position: int, header: BatchHeader) -> bytes:
        """Returns a batch that other batches depend on. Raises CorruptLog if its bytes or its offset have changed."""
        segment = self._segment
        batch = segment.file.read(position, header.total_bytes)
        if batch_crc(batch) != header.crc:
            raise CorruptLog(f"{segment.path}: the batch at byte {position} fails its checksum")
        # The checksum does not cover the offset: it has to match the neighbors'.
        following = header_at(segment.file, position + header.total_bytes)
        end = segment.next_offset if following is None else min(following.base_offset, segment.next_offset)
        if not self._expected <= header.base_offset < header.next_offset <= end:
            raise CorruptLog(f"{segment.path}: the batch at byte {position} cannot have offset {header.base_offset}")
        return batch
