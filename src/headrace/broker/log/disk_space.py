"""Disk space reserve: rejects produce requests before the disk is full, so that space can still be freed.

Deleting records, retention and checkpoints need some disk space themselves, and would fail on a full disk.
"""

import logging

from headrace.model.errors import DiskFull
from headrace.storage.io.file_system import FileSystem

log = logging.getLogger(__name__)

# Many times the size of the checkpoints, indexes and snapshots of thousands of partitions.
RESERVE_BYTES = 64 * 1024 * 1024
# On a small file system the reserve is a tenth of its size, which leaves nine tenths for records. The size does not
# depend on the free space at startup: a broker that starts on a full disk must still detect that it is full.
RESERVE_SHARE = 0.1
# Checking the free space costs a system call. Once in this many written bytes is enough to stop in time.
CHECK_EVERY_BYTES = 4 * 1024 * 1024
# Preallocation stops well before the reserve, so that it alone never causes produce requests to be rejected.
PREALLOCATION_SHARE = 1.5
# A broker that has resigned for lack of disk space leads again when 1.5 times the reserve is free.
AGAIN_SHARE = 1.5


class DiskSpaceGuard:
    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self.reserve_bytes = min(RESERVE_BYTES, int(files.total_bytes(path) * RESERVE_SHARE))
        self._unchecked = 0  # bytes since the last check of the disk, which found `_free` bytes
        self._free = 0
        self._unchecked_max = min(CHECK_EVERY_BYTES, self.reserve_bytes // 2)
        self._is_full = False
        self._look()  # the first batch is already rejected if the disk is full at startup

    def _look(self) -> None:
        self._unchecked = 0
        self._free = self._files.free_bytes(self._path)
        was_full, self._is_full = self._is_full, self._free < self.reserve_bytes
        if self._is_full and not was_full:
            log.error(
                "Less than %d bytes are free on %s; rejecting produce requests until space is freed",
                self.reserve_bytes,
                self._path,
            )
        elif was_full and not self._is_full:
            log.info("%s has enough free space; accepting produce requests again", self._path)

    def is_short(self, was_short: bool) -> bool:
        """Returns whether disk space is short; with hysteresis, so that the state does not alternate at the limit."""
        enough = self.reserve_bytes * (AGAIN_SHARE if was_short else 1)
        return self._files.free_bytes(self._path) < enough

    def may_preallocate(self, size: int) -> bool:
        """Returns whether 1.5 times the reserve stays free after `size` more bytes. If so, they count as written."""
        if self._unchecked + size >= self._unchecked_max:
            self._look()
        if self._free - self._unchecked - size < self.reserve_bytes * PREALLOCATION_SHARE:
            return False
        self._unchecked += size
        return True

    def check(self, size: int) -> None:
        """Raises DiskFull if writing `size` more bytes would use the reserve."""
        self._unchecked += size
        if self._is_full or self._unchecked >= self._unchecked_max:
            self._look()
        if self._is_full:
            raise DiskFull(
                f"less than {self.reserve_bytes} bytes are free on {self._path}: "
                "delete topics or records, lower the retention, or add space; reads continue"
            )
