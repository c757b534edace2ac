"""Leader epoch cache: the start offset of each leader epoch, with which a follower finds where its log diverges.

Stored in `leader-epoch-checkpoint`, one row per epoch. Independent of batches and of leader election.

A new epoch is in its file when `assign` returns, so that it survives a process crash. It survives a power loss after
the next sync of the log, which includes what `assign` returns: no batch of the epoch is acknowledged before. Appends
run on the event loop, which waits for no fsync. Rows that truncation removes are removed from the file later, by
`flush`: opening a log truncates the cache to its actual start and end again, so that a surplus row is harmless.
"""

from bisect import bisect_left, bisect_right

from headrace.model.errors import CorruptLog, StorageError
from headrace.model.ids import NO_EPOCH
from headrace.storage.directory.checkpoint_files import read_rows, write_rows
from headrace.storage.io.file_system import DirectorySync, Durable, FileSync, FileSystem

FILE_NAME = "leader-epoch-checkpoint"
UNKNOWN_OFFSET = -1


class LeaderEpochFileCache:
    """Epochs and their start offsets, both strictly ascending. `latest` is NO_EPOCH if there is none."""

    __slots__ = ("_directory", "_dirty", "_epochs", "_files", "_path", "_starts", "latest")

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._dirty = False
        self.latest = NO_EPOCH
        try:
            found = read_rows(files, self._path, columns=2, has_checksum=False)
            rows = [(int(epoch), int(start)) for epoch, start in found]
        except ValueError as error:
            raise CorruptLog(f"{self._path} cannot be read: {error}") from error
        for epoch, start in rows:
            if epoch < 0 or start < 0:
                raise CorruptLog(f"{self._path} has an invalid row: epoch {epoch}, start offset {start}")
            self._assign(epoch, start)
        if len(self._epochs) != len(rows):
            raise CorruptLog(f"{self._path} cannot be read: its rows do not ascend")

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> list[Durable]:
        """Starts an epoch at `start_offset` and writes the file.

        Returns what must be synced; empty if the epoch is not new.
        """
        before = self._epochs[:], self._starts[:], self.latest
        if not self._assign(epoch, start_offset):
            return []
        try:
            self._write(sync=False)
        except StorageError:
            self._epochs, self._starts, self.latest = before  # otherwise the next append would not retry the write
            raise
        return [FileSync(self._files, self._path), DirectorySync(self._files, self._directory)]

    def _assign(self, epoch: int, start_offset: int) -> bool:
        if self._epochs and epoch == self.latest and start_offset >= self._starts[-1]:
            return False
        # Removes epochs without records, and rows of a truncated log: both columns ascend.
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        del self._epochs[keep:]
        del self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        return True

    def epoch_of(self, offset: int) -> int:
        """Returns the epoch of the batch at this offset; NO_EPOCH before the first known one."""
        number = bisect_right(self._starts, offset)
        return self._epochs[number - 1] if number else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Returns the largest known epoch that is at most `epoch`, and its end offset.

        An epoch below all known ones is returned with the start offset of the first: its records are no longer in the
        log, and the follower continues from there.
        """
        if epoch == NO_EPOCH or not self._epochs:
            return NO_EPOCH, UNKNOWN_OFFSET
        if epoch >= self.latest:
            return self.latest, log_end
        following = bisect_right(self._epochs, epoch)
        known = self._epochs[following - 1] if following else epoch
        return known, self._starts[following]

    def truncate_from_end(self, end_offset: int) -> None:
        """Removes the epochs that begin at or after the new log end: they have no records."""
        keep = bisect_left(self._starts, end_offset)
        if keep == len(self._starts):
            return
        del self._epochs[keep:]
        del self._starts[keep:]
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        self._dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Truncates to the new log start: the epoch that is current at this offset becomes the first."""
        past = bisect_right(self._starts, start_offset)
        if past == 0 or (past == 1 and self._starts[0] == start_offset):
            return
        del self._epochs[: past - 1]
        del self._starts[: past - 1]
        self._starts[0] = start_offset
        self._dirty = True

    def flush(self) -> None:
        """Writes the file if truncation changed the rows."""
        if self._dirty:
            self._write()

    def _write(self, *, sync: bool = True) -> None:
        write_rows(self._files, self._path, (f"{epoch} {start}" for epoch, start in self.entries()), sync=sync)
        self._dirty = False
