"""The care for a table that grows by small commits: small files become large ones, and what nobody reads any more goes.

Neither changes a row, and neither is in a hurry: a table that somebody else has changed meanwhile is cared for later.
"""

from typing import NamedTuple, Protocol


class Upkeep(NamedTuple):
    small_bytes: int = 64 * 1024 * 1024  # half of what readers of lakes like a file to be
    small_files_max: int = 20  # opening so many costs a reader as much as reading one large one
    keep_s: float = 24 * 3600.0  # older snapshots go, and their files: no query runs for a day


class KeptTable(Protocol):
    def small_files(self, upkeep: Upkeep) -> int:
        """How many files would be merged; 0 while there are too few to bother."""

    def compact(self, upkeep: Upkeep) -> int:
        """Merge small files; how many there were. TableChanged if somebody else was faster."""

    def expire(self, upkeep: Upkeep) -> int:
        """Let old snapshots go, and the files that only they name; how many files went."""
