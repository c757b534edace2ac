"""The aborted transactions of one segment: its `.txnindex`, open only while the segment is written.

Most segments never see a transaction and have no such file.
"""

import os

from headrace.storage.files import Files
from headrace.storage.txn_index import SUFFIX, AbortedTxn, TxnIndex


class AbortedTransactions:
    __slots__ = ("_base_offset", "_files", "_has_new_name", "_open", "_path")

    def __init__(self, files: Files, stem: str, base_offset: int) -> None:
        self._files = files
        self._path = stem + SUFFIX
        self._base_offset = base_offset
        self._open: TxnIndex | None = None
        self._has_new_name = False  # which the disk may not know of yet

    def note(self, txn: AbortedTxn) -> None:
        """A marker in this segment aborts a transaction: live and at recovery alike."""
        if self._open is None:
            self._has_new_name = not self._files.exists(self._path)
            self._open = TxnIndex(self._files, self._path)
        self._open.append(txn)

    def forget_from(self, offset: int) -> None:
        """Before the log is read again from this offset on: its markers are about to be noted anew."""
        self.close()
        if not self._files.exists(self._path):
            return
        if offset <= self._base_offset:
            self._files.remove(self._path)
        else:
            self._open = TxnIndex(self._files, self._path)
            self._open.truncate(offset)

    def check(self) -> None:
        """CorruptLog if the index cannot be the one of this segment."""
        if self._files.exists(self._path):
            index = TxnIndex(self._files, self._path)
            try:
                index.check(self._base_offset)
            finally:
                index.close()

    def between(self, first_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
        """Those that touch the offsets, and whether later segments cannot hold more of them."""
        if self._open is not None:
            return self._open.overlapping(first_offset, upper_bound)
        if not self._files.exists(self._path):
            return [], False
        index = TxnIndex(self._files, self._path)
        try:
            return index.overlapping(first_offset, upper_bound)
        finally:
            index.close()

    def seal(self) -> None:
        """On disk before the snapshot that follows: recovery reads markers only from that snapshot on."""
        if self._open is not None:
            self._open.sync()
            if self._has_new_name:
                self._files.sync_dir(os.path.dirname(self._path))
                self._has_new_name = False
            self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
