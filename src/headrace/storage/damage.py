"""Where a log is damaged, for whoever can get the records from elsewhere."""

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.storage.log import Log
    from headrace.storage.segment_check import Hole


def holes_in(log: "Log") -> "Iterator[Hole]":
    """As far as anybody has looked."""
    return chain(log.holes, *(segment.holes for segment in log.segments))


def damaged_from(log: "Log") -> int | None:
    """The first offset that should be readable here and is not, as far as anybody has looked."""
    return min((hole.base_offset for hole in holes_in(log) if hole.next_offset >= log.log_start_offset), default=None)
