"""Which offsets an archive covers, as each of its commits says it. Pure: text and numbers.

Covered means: whatever a reader of committed records could see of these offsets is in the table. Aborted records,
markers and what compaction removed are covered without being rows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Coverage:
    starts: Mapping[int, int] = field(default_factory=dict)  # partition → first offset that was ever to be had
    ends: Mapping[int, int] = field(default_factory=dict)  # partition → first offset that is not covered
    lost: Mapping[int, int] = field(default_factory=dict)  # partition → offsets that were gone before they were read

    def position(self, partition: int, log_start: int) -> int:
        """Where to go on: never before the log begins."""
        return max(self.ends.get(partition, log_start), log_start)

    def advanced(self, log_starts: Mapping[int, int], ends: Mapping[int, int]) -> "Coverage":
        """After a commit that read from the positions to these ends."""
        lost = dict(self.lost)
        for partition, end in self.ends.items():
            missed = log_starts.get(partition, end) - end
            if missed > 0 and partition in ends:
                lost[partition] = lost.get(partition, 0) + missed
        starts = {**{one: log_starts[one] for one in ends if one not in self.starts}, **self.starts}
        return Coverage(starts, {**self.ends, **ends}, lost)

    def to_notes(self) -> dict[str, str]:
        return {"from": _dumped(self.starts), "until": _dumped(self.ends), "lost": _dumped(self.lost)}

    @classmethod
    def from_notes(cls, notes: Mapping[str, str]) -> "Coverage":
        try:
            return cls(*(_loaded(notes[name]) for name in ("from", "until", "lost")))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidConfig(f"the table's last commit has {dict(notes)!r}, which no archive would") from None


def _dumped(numbers: Mapping[int, int]) -> str:
    return json.dumps({str(partition): numbers[partition] for partition in sorted(numbers)})


def _loaded(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
