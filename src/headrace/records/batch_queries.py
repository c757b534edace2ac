"""Queries over the records of one batch: missing keys, and lookups by timestamp.

Each scans the batch once and keeps no Python object per record.
"""

from headrace.records.batch import BatchHeader
from headrace.records.compression import DECOMPRESSED_BYTES_MAX, Buffer
from headrace.records.record import checked_header, iter_record_spans, records_section

# A producer has to be corrected after the first error; a batch of a million invalid records must not become a response
# of a hundred megabytes.
RECORD_ERRORS_MAX = 1_000

_KEY_MISSING = "a record of a compacted topic needs a key"


def key_errors(
    batch: Buffer, header: BatchHeader | None = None, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[tuple[int, str], ...]:
    """Returns index and error of each record (the first RECORD_ERRORS_MAX) that a compacted topic rejects."""
    header = checked_header(batch, header)
    errors: list[tuple[int, str]] = []
    section = records_section(batch, header, bytes_max=bytes_max)
    for index, placed in enumerate(iter_record_spans(section, header)):
        if placed[2] is None and len(errors) < RECORD_ERRORS_MAX:
            errors.append((index, _KEY_MISSING))
    return tuple(errors)


def older_than(
    batch: Buffer,
    header: BatchHeader | None,
    oldest: int,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> tuple[tuple[int, int], ...]:
    """Returns index and timestamp of each record (the first RECORD_ERRORS_MAX) from before `oldest`."""
    header = checked_header(batch, header)
    late: list[tuple[int, int]] = []
    section = records_section(batch, header, bytes_max=bytes_max)
    for index, placed in enumerate(iter_record_spans(section, header)):
        if placed[1] < oldest and len(late) < RECORD_ERRORS_MAX:
            late.append((index, placed[1]))
    return tuple(late)


def first_at_or_after(
    batch: Buffer,
    header: BatchHeader | None,
    timestamp: int,
    *,
    from_offset: int = 0,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> tuple[int, int] | None:
    """Returns offset and timestamp of the first record in offset order with at least `timestamp`.

    Returns None if there is none.

    `from_offset` is for the batch that contains the log start offset: records before it are not visible to consumers.
    """
    header = checked_header(batch, header)
    if timestamp > header.max_timestamp:
        return None
    section = records_section(batch, header, bytes_max=bytes_max)
    for placed in iter_record_spans(section, header):
        if placed[1] >= timestamp and placed[0] >= from_offset:
            return placed[0], placed[1]
    return None


def max_timestamp_record(
    batch: Buffer, header: BatchHeader | None = None, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[int, int] | None:
    """Returns offset and timestamp of the first of the newest records; None for a batch that compaction emptied."""
    header = checked_header(batch, header)
    section = records_section(batch, header, bytes_max=bytes_max)
    newest: tuple[int, int] | None = None
    for placed in iter_record_spans(section, header):
        if newest is None or placed[1] > newest[1]:
            newest = placed[0], placed[1]
    return newest
