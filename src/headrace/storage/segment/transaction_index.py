"""The index of aborted transactions of a segment (`.txnindex`): its file format, and its use by a log.

One entry for each transaction that a marker in the segment aborted:

    int16   version (0)
    int64   producer id
    int64   first offset of the transaction
    int64   last offset: the marker's, ascending from entry to entry
    int64   last stable offset when the marker was written

A fetch of a `read_committed` consumer looks up the entries that overlap its range. Entries are searched in the file,
so that a segment with a million aborted transactions costs no memory. Most segments have no aborted transaction: the
file is created with the first entry, and is open only while the segment is written.

A file that is missing or altered would expose aborted records, or hide committed ones. So `sum` identifies the
entries that were written: producer snapshots store it (`storage/producer/producer_snapshot_file.py`), and the file is
compared with it when the log is opened, before compaction and by the scrubber.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import CorruptLog, StorageError
from headrace.records.crc import crc32c
from headrace.storage.io.file_system import DirectorySync, Durable, File, FileSystem, write_synced

ENTRY = Struct(">hqqqq")
VERSION = 0
SUFFIX = ".txnindex"
_LAST_OFFSET_AT = 18
_OFFSET = Struct(">q")
READ_ENTRIES = 256  # 8.5 KiB per read: more than a fetch needs, few enough to be cheap if it needs none
SUM_ENTRIES = 32 * 1024  # 1 MiB per read when only the checksum is computed


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class IndexSum(NamedTuple):
    """The number of entries that were written, and their CRC-32C. The format of the file has no checksum."""

    entries: int
    crc: int

    def __bool__(self) -> bool:
        return self.entries > 0

    def plus(self, data: bytes) -> "IndexSum":
        return IndexSum(self.entries + len(data) // ENTRY.size, crc32c(data, self.crc))


NO_ENTRIES = IndexSum(0, 0)


def pack_entries(txns: Iterable[AbortedTxn]) -> bytes:
    """Returns the content of an index with these entries."""
    return b"".join(ENTRY.pack(VERSION, *txn) for txn in txns)


class TxnIndex:
    __slots__ = ("_file", "_files", "last_offset", "path")

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self.path = path
        self._file: File | None = files.open(path) if files.exists(path) else None
        self.last_offset = self._read_last_offset()

    def __len__(self) -> int:
        return self._file.size // ENTRY.size if self._file is not None else 0

    def append(self, txn: AbortedTxn) -> None:
        assert txn.last_offset > self.last_offset, "markers are indexed in log order"
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
        self._file.append(ENTRY.pack(VERSION, *txn))
        self.last_offset = txn.last_offset

    def remove_last(self) -> None:
        assert self._file is not None, "an index without a file has no entries"
        self._file.truncate(self._file.size - ENTRY.size)
        self.last_offset = self._read_last_offset()

    def entries(self, number: int = 0) -> Iterator[AbortedTxn]:
        """Yields the entries from number `number` on, in log order."""
        file = self._file
        while file is not None and number < len(self):
            chunk = file.read(number * ENTRY.size, min(READ_ENTRIES, len(self) - number) * ENTRY.size)
            for version, *fields in ENTRY.iter_unpack(chunk):
                if version != VERSION:
                    raise CorruptLog(f"{self.path} has an entry of the unknown version {version}")
                yield AbortedTxn._make(fields)
            number += READ_ENTRIES

    def overlapping(self, first_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Returns those that overlap [first_offset, upper_bound), and whether later segments have no more of them."""
        found: list[AbortedTxn] = []
        for txn in self.entries(self._first_ending_at_or_after(first_offset)):
            if txn.first_offset < upper_bound:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound:
                # All transactions below the bound had ended by then: a later marker aborts only records past it.
                return found, True
        return found, False

    def check(self, base_offset: int, expected: IndexSum | None = None, *, may_go_on: bool = False) -> None:
        """Raises CorruptLog unless the entries are the expected ones; with `may_go_on`, entries may follow them.

        Other entries only have to be possible in a segment that starts at `base_offset`.
        """
        if self._file is not None and self._file.size % ENTRY.size:
            raise CorruptLog(f"{self.path} ends within an entry")
        previous = base_offset - 1
        known = expected.entries if expected is not None else 0
        if expected is not None:
            self._check_first(expected, may_go_on=may_go_on)
            previous = self._last_offset_of(known - 1) if known else previous
        for txn in self.entries(known):
            if txn.last_offset <= previous:
                raise CorruptLog(f"{self.path}: {txn} does not belong behind offset {previous}")
            previous = txn.last_offset

    def check_briefly(self, expected: IndexSum) -> None:
        """Raises CorruptLog if the number of entries differs, or the entries of an index that fits one read."""
        if len(self) != expected.entries or expected.entries <= READ_ENTRIES:
            self._check_first(expected, may_go_on=False)

    def _check_first(self, expected: IndexSum, *, may_go_on: bool) -> None:
        if len(self) < expected.entries or (len(self) > expected.entries and not may_go_on):
            raise CorruptLog(f"{self.path} has {len(self)} entries; {expected.entries} were written")
        if self.sum_of_first(expected.entries) != expected:
            raise CorruptLog(f"{self.path} has other entries than were written")

    def sum_of_first(self, entries: int) -> IndexSum:
        found = NO_ENTRIES
        while self._file is not None and found.entries < entries:
            count = min(entries - found.entries, SUM_ENTRIES)
            found = found.plus(self._file.read(found.entries * ENTRY.size, count * ENTRY.size))
        return found

    def truncate(self, end_offset: int) -> None:
        """Removes entries of markers at or past `end_offset`."""
        if self._file is not None:
            self._file.truncate(self._first_ending_at_or_after(end_offset) * ENTRY.size)
            self.last_offset = self._read_last_offset()

    def sync(self) -> None:
        """Syncs the file. After a failure the entries are written again.

        Otherwise the next start, which rewrites no valid index, would read them from the page cache, and its sync
        would succeed without writing them.
        """
        if self._file is None:
            return
        try:
            self._file.sync()
        except StorageError:
            self._file.write_again()
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _first_ending_at_or_after(self, offset: int) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._last_offset_of(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _last_offset_of(self, number: int) -> int:
        assert self._file is not None, "an index without a file has no entries"
        data = self._file.read(number * ENTRY.size + _LAST_OFFSET_AT, _OFFSET.size)
        last_offset: int = _OFFSET.unpack(data)[0]
        return last_offset

    def _read_last_offset(self) -> int:
        count = len(self)
        return self._last_offset_of(count - 1) if count else -1


PREPARED_SUFFIX = ".tmp"  # the next start removes files with this suffix


class PreparedIndex(NamedTuple):
    """Input of `adopt`: a synced new file, or None if the index is valid; and the sum of the entries."""

    path: str | None
    sum: IndexSum


class SegmentTransactionIndex:
    __slots__ = ("_base_offset", "_files", "_has_new_name", "_open", "_sum_before", "path", "sum")

    def __init__(self, files: FileSystem, stem: str, base_offset: int) -> None:
        self._files = files
        self.path = stem + SUFFIX
        self._base_offset = base_offset
        self._open: TxnIndex | None = None
        self._has_new_name = False  # the directory entry may not be synced yet
        # of what was written; None until the index of a log that is opened has been checked
        self.sum: IndexSum | None = None
        self._sum_before = NO_ENTRIES  # before the entry that was added last

    def note(self, txn: AbortedTxn) -> None:
        """Adds an aborted transaction whose marker is in this segment, after an append and during recovery."""
        if self._open is None:
            self._has_new_name = not self._files.exists(self.path)
            self._open = TxnIndex(self._files, self.path)
        self._open.append(txn)
        if self.sum is not None:
            self._sum_before, self.sum = self.sum, self.sum.plus(pack_entries([txn]))

    def remove_last(self) -> None:
        """Removes the entry that was added last, because its marker could not be written.

        Raises StorageError if that fails, never DiskFull: the entry may still be there, so the log needs recovery.
        """
        assert self._open is not None, "an entry was noted"
        try:
            self._open.remove_last()
        except StorageError as error:
            raise StorageError(f"cannot remove the entry of a failed append from {self.path}: {error}") from error
        if self.sum is not None:
            self.sum = self._sum_before

    def entries_from(self, offset: int) -> list[AbortedTxn]:
        """Returns the entries of markers at or past the offset, in log order."""
        if not self._files.exists(self.path):
            return []
        index = TxnIndex(self._files, self.path)
        try:
            return [txn for txn in index.entries() if txn.last_offset >= offset]
        finally:
            index.close()

    def rewrite_from(self, offset: int, txns: Sequence[AbortedTxn]) -> None:
        """Makes `txns` the entries of markers at or past the offset.

        Atomic if the index has other entries: an entry may be all that is left of a corrupt marker, so that a crash
        must not lose it. Missing entries are only appended.
        """
        entries = self.entries_from(0)
        kept = [txn for txn in entries if txn.last_offset < offset]
        known = [txn for txn in entries if txn.last_offset >= offset]
        added = txns[len(known) :]
        is_replaced = [*known, *added] != [*txns]
        if is_replaced:
            self.close()
            self._files.replace(self.path, pack_entries([*kept, *txns]))
            added = ()
        if (txns or is_replaced) and self._open is None:
            self._open = TxnIndex(self._files, self.path)
            self._has_new_name = True  # the last process may have created the file without syncing its name
        for txn in added:
            self.note(txn)
        self.sum = NO_ENTRIES.plus(pack_entries([*kept, *txns]))

    def prepare_rewrite(self, offset: int, end_offset: int, txns: Sequence[AbortedTxn]) -> PreparedIndex:
        """Makes `txns` the entries from `offset` up to `end_offset`, in a new file that is synced.

        Writes no file if the index has these entries already. May run in a thread.
        """
        try:
            self.check()
            known = [txn for txn in self.entries_from(0) if txn.last_offset < end_offset]
            wanted = [*[txn for txn in known if txn.last_offset < offset], *txns]
            if wanted == known:
                return PreparedIndex(None, NO_ENTRIES.plus(pack_entries(wanted)))
        except CorruptLog:
            wanted = [*txns]
        path, data = self.path + PREPARED_SUFFIX, pack_entries(wanted)
        write_synced(self._files, path, data)
        return PreparedIndex(path, NO_ENTRIES.plus(data))

    def adopt(self, prepared: PreparedIndex, txns: Sequence[AbortedTxn]) -> None:
        """Replaces the index by the prepared file, if there is one; the next snapshot waits until it is synced.

        Waits for no disk. The prepared file is synced, so that a power loss leaves the former entries or the new
        ones.
        """
        if prepared.path is not None:
            self.close()
            self._files.rename(prepared.path, self.path)
        self.sum = prepared.sum
        if txns and self._open is None:
            self._open = TxnIndex(self._files, self.path)
            self._has_new_name = True

    def forget_from(self, offset: int) -> None:
        """Removes the entries of markers at or past the offset."""
        self.close()
        if offset <= self._base_offset:
            self.sum = NO_ENTRIES if self.sum is not None else None
            if self._files.exists(self.path):
                self._files.remove(self.path)
        elif self._files.exists(self.path):
            self._open = TxnIndex(self._files, self.path)
            is_intact = self._open.sum_of_first(len(self._open)) == self.sum
            self._open.truncate(offset)
            if is_intact:  # otherwise the sum is kept, and the index does not match it
                self.sum = self._open.sum_of_first(len(self._open))

    def forget_past(self, log_end_offset: int) -> None:
        """Removes entries of markers at or past the log end, if there are any."""
        if self.last_offset() >= log_end_offset:
            self.forget_from(log_end_offset)

    def last_offset(self) -> int:
        """Returns the offset of the last indexed marker; -1 if there is none."""
        if self._open is not None:
            return self._open.last_offset
        if not self._files.exists(self.path):
            return -1
        index = TxnIndex(self._files, self.path)
        try:
            return index.last_offset
        finally:
            index.close()

    def check(self) -> None:
        """Raises CorruptLog if the index is not the one that was written, or cannot be the one of this segment.

        Opens the file separately, so that it may run in a thread.
        """
        self.check_as(self.sum)

    def check_as(self, expected: IndexSum | None, *, may_go_on: bool = False) -> None:
        """Checks the index against the sum of a snapshot.

        With None, only checks that it can be the index of this segment.
        """
        index = TxnIndex(self._files, self.path)
        try:
            index.check(self._base_offset, expected, may_go_on=may_go_on)
        finally:
            index.close()

    def trust(self, expected: IndexSum | None) -> None:
        """Records the sum of a file that was checked. Without an expected sum, computes that of its content."""
        if expected is None:
            index = TxnIndex(self._files, self.path)
            try:
                expected = index.sum_of_first(len(index))
            finally:
                index.close()
        self.sum = expected

    def between(self, first_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Returns the entries that overlap the offsets, and whether later segments cannot have more of them.

        Raises CorruptLog if the file is not the one that was written, as far as one read detects that.
        """
        if self._open is not None:
            return self._open.overlapping(first_offset, upper_bound)
        if self.sum == NO_ENTRIES:
            return [], False
        index = TxnIndex(self._files, self.path)
        try:
            if self.sum is not None:
                index.check_briefly(self.sum)
            return index.overlapping(first_offset, upper_bound)
        finally:
            index.close()

    def seal(self) -> list[Durable]:
        """Ends the entries. Returns what must be synced before the snapshot that follows is written.

        Recovery reads markers only from that snapshot on, so that it depends on the index below it.
        """
        if self._open is None:
            return []
        unsynced: list[Durable] = [self._open]
        if self._has_new_name:
            unsynced.append(DirectorySync(self._files, os.path.dirname(self.path)))
            self._has_new_name = False
        self._open = None  # its file is closed with the last reference, after the sync
        return unsynced

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
