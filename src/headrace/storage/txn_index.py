"""The `.txnindex` of one segment: the transactions that were aborted by a marker in it.

    int16   version (0)
    int64   producer id
    int64   first offset of the transaction
    int64   last offset: the marker's, ascending from entry to entry
    int64   last stable offset when the marker was written

A reader of committed data asks which of them touch its range. Entries are searched in the file, so that a
segment with a million aborted transactions costs no memory. The file appears with the first entry: nearly all
segments have none.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import CorruptLog, StorageError
from headrace.records.crc import crc32c
from headrace.storage.files import File, Files

ENTRY = Struct(">hqqqq")
VERSION = 0
SUFFIX = ".txnindex"
_LAST_OFFSET_AT = 18
_OFFSET = Struct(">q")
READ_ENTRIES = 256  # 8.5 KiB a read: more than a fetch finds, few enough to be cheap when it finds none
SUM_ENTRIES = 32 * 1024  # 1 MiB a read of those that only pass through the checksum


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
    """The content of an index with these entries."""
    return b"".join(ENTRY.pack(VERSION, *txn) for txn in txns)


class TxnIndex:
    __slots__ = ("_file", "_files", "last_offset", "path")

    def __init__(self, files: Files, path: str) -> None:
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
        """From entry `number` on, in log order."""
        file = self._file
        while file is not None and number < len(self):
            chunk = file.read(number * ENTRY.size, min(READ_ENTRIES, len(self) - number) * ENTRY.size)
            for version, *fields in ENTRY.iter_unpack(chunk):
                if version != VERSION:
                    raise CorruptLog(f"{self.path} has an entry of the unknown version {version}")
                yield AbortedTxn._make(fields)
            number += READ_ENTRIES

    def overlapping(self, first_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Those that touch [first_offset, upper_bound), and whether later segments cannot have any more."""
        found: list[AbortedTxn] = []
        for txn in self.entries(self._first_ending_at_or_after(first_offset)):
            if txn.first_offset < upper_bound:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound:
                # All below the bound was decided by then: a later marker aborts only what lies past it.
                return found, True
        return found, False

    def check(self, base_offset: int, expected: IndexSum | None = None, *, may_go_on: bool = False) -> None:
        """CorruptLog unless the entries are the expected ones; with `may_go_on`, entries may follow them.

        Others only have to be possible in a segment that starts at `base_offset`.
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
        """CorruptLog if the index has not as many entries, or other ones where one read shows all of them."""
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
        """Forget markers at or past `end_offset`."""
        if self._file is not None:
            self._file.truncate(self._first_ending_at_or_after(end_offset) * ENTRY.size)
            self.last_offset = self._read_last_offset()

    def sync(self) -> None:
        """After a failure the entries are written again: else the next start, which changes none that is right, would
        find them in the page cache, and its sync would succeed without writing them.
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
