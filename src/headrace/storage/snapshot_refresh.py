"""The newest producer snapshot says which entries each index of aborted transactions has. Compaction changes them.

Without this, the next start after a crash would find other entries than were written, and read the batches again.
"""

from typing import TYPE_CHECKING

from headrace.storage.files import write_synced
from headrace.storage.producer_snapshot import encode_snapshot, newest_snapshot, snapshot_path
from headrace.storage.slices import Task, off_loop
from headrace.storage.snapshot_appendix import Appendix

if TYPE_CHECKING:
    from headrace.storage.log import Log

PREPARED_SUFFIX = ".vouched.tmp"  # the next start removes it


def vouch_for_indexes(log: "Log") -> Task[None]:
    """Writes what the sealed segments' indexes hold now into the newest snapshot, durably or not at all."""
    newest = newest_snapshot(log.files, log.directory, log.log_end_offset, removes_unreadable=False)
    if newest is None or newest.appendix is None:
        return
    path = snapshot_path(log.directory, newest.offset)
    sums = {one.base_offset: one.aborted.sum for one in log.segments if one.next_offset <= newest.offset}
    part = {base: found for base, found in newest.appendix.index_sums.items() if base == _last_base(log, newest.offset)}
    known = {base: found for base, found in (sums | part).items() if found}
    data = encode_snapshot(newest.rows, Appendix(known, newest.appendix.idle_ms))
    before = log.files.read(path)
    yield from off_loop(lambda: write_synced(log.files, path + PREPARED_SUFFIX, data))
    # A truncation may have removed it meanwhile: it speaks of records that are gone.
    if log.files.exists(path) and log.files.read(path) == before:
        log.files.rename(path + PREPARED_SUFFIX, path)
    else:
        log.files.remove(path + PREPARED_SUFFIX)


def _last_base(log: "Log", offset: int) -> int:
    """Of the segment that the snapshot stands in. It may have grown: the snapshot knows the first part of its index."""
    return next((one.base_offset for one in log.segments if one.base_offset < offset < one.next_offset), -1)
