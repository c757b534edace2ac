"""Replaces segments atomically after compaction, and names the files of a segment.

    1. NAME.log.cleaned and its indexes are written and synced      after a crash: removed, the old segments are valid
    2. .cleaned → .swap, the log last, directory synced             a crash before the sync: as above
       ──────────────── from here on the new segment is valid ────────────────
    3. old segments → .deleted, directory synced                    after a crash: the swap is completed
    4. .swap → no suffix, the log last, directory synced            after a crash: likewise
    5. .deleted are removed after `file.delete.delay.ms`, when no response reads them

The last batch of the old segments is always kept, even if empty, so that the `.swap` file itself determines which
offsets it replaces. The in-memory log changes in the same step as the names of the old files: a removal by name never
meets a name that has been reused for another file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headrace.model.errors import CorruptLog, PassingStorageError, StorageError
from headrace.storage.io.file_system import File, FileSystem
from headrace.storage.io.stepwise import Task, off_loop
from headrace.storage.producer.producer_snapshot_file import SNAPSHOT_SUFFIX
from headrace.storage.segment.file_names import parse_file_name
from headrace.storage.segment.log_segment import LogSegment, segment_name
from headrace.storage.segment.transaction_index import SUFFIX as TXN_SUFFIX

if TYPE_CHECKING:
    from headrace.storage.log import Log


DELETED_SUFFIX = ".deleted"  # left by an interrupted removal; the next opening removes these files
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
SEGMENT_SUFFIXES = (".log", *INDEX_SUFFIXES, ".snapshot")
# Files of a compacted segment that is about to replace the old one. The next start would complete the swap, and restore
# the segment in front of a gap. The log is removed first: without it, a start removes the others.
SWAP_SUFFIXES = tuple(suffix + ".swap" for suffix in (".log", *INDEX_SUFFIXES))


def set_aside_segment_files(files: FileSystem, segment: LogSegment) -> list[str]:
    """Renames the files of a segment that left its log to names that are not in use.

    Returns the new names, for a later removal.

    Removed later by their old names, they could be the files of a topic that was created since under the same name.
    """
    stem = f"{segment.directory}/{segment_name(segment.base_offset)}"
    aside = []
    for suffix in (*SEGMENT_SUFFIXES, *SWAP_SUFFIXES):
        if files.exists(stem + suffix):
            files.rename(stem + suffix, stem + suffix + DELETED_SUFFIX)
            aside.append(stem + suffix + DELETED_SUFFIX)
    return aside


def remove_segment_files(files: FileSystem, segment: LogSegment) -> None:
    """Removes the log file first: without it the others are unused, and recovery removes them."""
    stem = f"{segment.directory}/{segment_name(segment.base_offset)}"
    for suffix in SEGMENT_SUFFIXES:
        with suppress(FileNotFoundError):
            files.remove(stem + suffix)


CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
# The log comes last: once it has its new name, the others have theirs.
FILES_OF_SEGMENT = (".index", ".timeindex", TXN_SUFFIX, ".log")


class SuffixedFiles:
    """File system that adds a suffix to names. The suffix can change while a segment has the files open."""

    def __init__(self, files: FileSystem, suffix: str) -> None:
        self._files = files
        self.suffix = suffix

    def open(self, path: str, *, create: bool = False) -> File:
        return self._files.open(path + self.suffix, create=create)

    def read(self, path: str) -> bytes:
        return self._files.read(path + self.suffix)

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._files.replace(path + self.suffix, data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old + self.suffix, new + self.suffix)

    def remove(self, path: str) -> None:
        self._files.remove(path + self.suffix)

    def exists(self, path: str) -> bool:
        return self._files.exists(path + self.suffix)

    def list(self, directory: str) -> list[str]:
        return self._files.list(directory)

    def make_dir(self, path: str) -> None:
        self._files.make_dir(path)

    def remove_tree(self, path: str) -> None:
        self._files.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self._files.sync_dir(path)

    def boot_id(self) -> str:
        return self._files.boot_id()

    def identity(self, path: str) -> str:
        return self._files.identity(path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._files.total_bytes(path)


class NewSegment:
    """A segment that is being written, and the current suffix of its files."""

    def __init__(
        self, files: FileSystem, directory: str, base_offset: int, *, index_interval_bytes: int, now_ms: int
    ) -> None:
        self._files = files
        self._stem = f"{directory}/{segment_name(base_offset)}"
        self._suffixed = SuffixedFiles(files, CLEANED)
        remove_if_there(files, *(self._stem + kind + CLEANED for kind in FILES_OF_SEGMENT))
        self.segment = LogSegment(
            self._suffixed,
            directory,
            base_offset,
            index_interval_bytes=index_interval_bytes,
            create=True,
            now_ms=now_ms,
        )

    def seal_and_sync(self) -> None:
        self.segment.seal()
        self.segment.aborted.close()
        for kind in FILES_OF_SEGMENT:
            if self._suffixed.exists(self._stem + kind):
                file = self._suffixed.open(self._stem + kind)
                file.sync()
                file.close()
        self._suffixed.sync_dir(self.segment.directory)

    def rename(self, suffix: str) -> None:
        for kind in FILES_OF_SEGMENT:
            path = self._stem + kind
            if self._suffixed.exists(path):
                self._files.rename(path + self._suffixed.suffix, path + suffix)
        self._suffixed.suffix = suffix

    def discard_unless_swapped(self) -> None:
        """Removes the files before the swap.

        Later they are part of the log, or the next opening completes the swap with them.
        """
        if self._suffixed.suffix == CLEANED:
            self.discard()

    def discard(self) -> None:
        """Removes the log file first: without it the others are unused.

        Some may have the suffix of a rename that failed.
        """
        self.segment.close()
        for suffix in (self._suffixed.suffix, SWAP):
            remove_if_there(self._files, *(self._stem + kind + suffix for kind in reversed(FILES_OF_SEGMENT)))


class ReplacedSegment:
    """A segment that has left its log. Responses may still read it."""

    __slots__ = ("_paths", "segment")

    def __init__(self, segment: LogSegment, paths: Sequence[str]) -> None:
        self.segment: LogSegment | None = segment
        self._paths = paths

    def remove(self, files: FileSystem) -> None:
        """Removes the files, after `file.delete.delay.ms`.

        The last reference closes the file: of a response or a sync.
        """
        self.segment = None
        remove_if_there(files, *self._paths)


def swap_in(
    log: "Log", new: NewSegment, old: Sequence[LogSegment], truncations: int
) -> Task[list[ReplacedSegment] | None]:
    """Does steps 2 to 4. Returns None, without a change, if some of the old segments have left the log.

    The same if the log was truncated since it had so many `truncations`: an old segment may be the active one now.
    Raises PassingStorageError only if nothing has changed. A later failure leaves a swap that the next opening
    completes.
    """
    if log.truncations != truncations or not _are_in(log, old):
        return None
    new.rename(SWAP)
    yield from off_loop(lambda: log.files.sync_dir(log.directory))
    if log.truncations != truncations or not _are_in(log, old):
        new.discard()
        return None
    with _interrupted(log.directory):
        replaced = [ReplacedSegment(segment, _set_aside(log.files, segment, old[0].base_offset)) for segment in old]
    start = log.segments.index(old[0])
    new.segment.rebuilder = log.rebuilder
    log.segments[start : start + len(old)] = [new.segment]
    log.release_former_segments()
    yield from off_loop(lambda: log.files.sync_dir(log.directory))
    with _interrupted(log.directory):
        if new.segment in log.segments:
            new.rename("")
        else:
            new.discard()  # the log start has moved past it during the sync
    yield from off_loop(lambda: log.files.sync_dir(log.directory))
    return replaced


@contextmanager
def _interrupted(directory: str) -> Iterator[None]:
    """Raises every error as a StorageError, a full disk too: with some files renamed, the partition must go offline."""
    try:
        yield
    except PassingStorageError as error:
        raise StorageError(f"{directory}: a swap of segments was interrupted: {error}") from error


def _are_in(log: "Log", segments: Sequence[LogSegment]) -> bool:
    for start, segment in enumerate(log.segments):
        if segment is segments[0]:
            there = log.segments[start : start + len(segments)]
            return len(there) == len(segments) and all(a is b for a, b in zip(there, segments, strict=True))
    return False


def _set_aside(files: FileSystem, segment: LogSegment, new_base_offset: int) -> list[str]:
    stem = f"{segment.directory}/{segment_name(segment.base_offset)}"
    kinds = list(FILES_OF_SEGMENT)
    if segment.base_offset != new_base_offset:
        kinds.append(SNAPSHOT_SUFFIX)  # no segment begins there now
    aside = []
    for kind in kinds:
        if files.exists(stem + kind):
            files.rename(stem + kind, stem + kind + DELETED)
            aside.append(stem + kind + DELETED)
    return aside


def refuse_unfinished_swap(files: FileSystem, directory: str) -> None:
    """Raises StorageError if an error interrupted a swap: only the next opening of the log completes it."""
    if any(name.endswith(SWAP) for name in files.list(directory)):
        raise StorageError(f"{directory}: a swap of segments was interrupted; restart the broker to complete it")


# ── Recovery after a crash ──


def finish_swaps(files: FileSystem, directory: str) -> None:
    """Completes or rolls back every interrupted swap. Called before segments are opened."""
    names = [name for name in files.list(directory) if parse_file_name(name) is not None]
    cleaned = {name.split(".")[0] for name in names if name.endswith(CLEANED)}
    for name in names:
        stem = name.split(".")[0]
        if name == f"{stem}.log{SWAP}" and stem not in cleaned:
            _complete(files, directory, stem)
    names = [name for name in files.list(directory) if parse_file_name(name) is not None]
    leftovers = [name for name in names if name.endswith((CLEANED, SWAP, DELETED))]
    # A log file without its index is complete, an index without its log is not: the logs are removed first.
    leftovers.sort(key=lambda name: ".log." not in name)
    remove_if_there(files, *(f"{directory}/{name}" for name in leftovers))
    if leftovers:
        files.sync_dir(directory)


def _complete(files: FileSystem, directory: str, stem: str) -> None:
    base = int(stem)
    end = _end_of_swap(files, directory, base)
    found = [parse_file_name(name) for name in files.list(directory)]
    for old in sorted({name.offset for name in found if name is not None}):
        if base < old < end:
            _remove_files_of(files, f"{directory}/{segment_name(old)}", (*FILES_OF_SEGMENT, SNAPSHOT_SUFFIX))
    # Both steps 3 and 4 rename the log last: while the old log has its name, all files of that name are old, and after
    # that they are new.
    if files.exists(f"{directory}/{stem}.log"):
        _remove_files_of(files, f"{directory}/{stem}", FILES_OF_SEGMENT)
    files.sync_dir(directory)
    for kind in FILES_OF_SEGMENT:
        path = f"{directory}/{stem}{kind}"
        if files.exists(path + SWAP):
            files.rename(path + SWAP, path)
    files.sync_dir(directory)


def _remove_files_of(files: FileSystem, stem: str, kinds: Sequence[str]) -> None:
    remove_if_there(files, *(stem + kind for kind in kinds))


def _end_of_swap(files: FileSystem, directory: str, base: int) -> int:
    swap = SuffixedFiles(files, SWAP)
    segment = LogSegment(swap, directory, base, index_interval_bytes=0, create=False, now_ms=0)
    try:
        end = base
        for _, header in segment.headers():
            end = header.next_offset
    except CorruptLog as damage:
        raise CorruptLog(f"{segment.path}{SWAP} should replace older segments and is corrupt: {damage}") from damage
    finally:
        segment.close()
    return end


def remove_if_there(files: FileSystem, *paths: str) -> None:
    for path in paths:
        try:
            files.remove(path)
        except FileNotFoundError:
            continue
