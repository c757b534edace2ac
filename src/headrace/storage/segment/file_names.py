"""File names of a partition: the 20 digits of an offset, and a suffix."""

from typing import NamedTuple

OFFSET_DIGITS = 20  # zero-padded to the longest int64, so that names sort in the order of their offsets
OFFSET_MAX = 2**63 - 1


class FileName(NamedTuple):
    offset: int
    kind: str  # ".log", ".index", also ".log.swap"


def parse_file_name(name: str) -> FileName | None:
    """Parses a file name. Returns None for a file that is not part of a log; such files are left untouched."""
    digits, kind = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
    if len(digits) < OFFSET_DIGITS or not (digits.isascii() and digits.isdigit()) or not kind.startswith("."):
        return None
    offset = int(digits)
    return FileName(offset, kind) if offset <= OFFSET_MAX else None
