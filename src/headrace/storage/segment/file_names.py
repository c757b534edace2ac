"""Names of the files of a partition: the 20 digits of an offset, and what kind of file it is."""

from typing import NamedTuple

OFFSET_DIGITS = 20  # zero-padded to the longest int64, so that names sort as their offsets do
OFFSET_MAX = 2**63 - 1


class FileName(NamedTuple):
    offset: int
    kind: str  # ".log", ".index", also ".log.swap"


def parse_file_name(name: str) -> FileName | None:
    """None for a file that no log has: an operator or another program put it there, and it is left alone."""
    digits, kind = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
    if len(digits) < OFFSET_DIGITS or not (digits.isascii() and digits.isdigit()) or not kind.startswith("."):
        return None
    offset = int(digits)
    return FileName(offset, kind) if offset <= OFFSET_MAX else None
