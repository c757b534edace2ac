"""What a streaming query's checkpoint says of a micro-batch: the end offsets that were written down before it ran.

A batch that is repeated has the same number and the same ends. After a checkpoint was restored from a backup, Spark
plans numbers again that the sink has, with other ends: such a batch is another one, and must not pass for the first.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from headrace.client.reader.offsets import is_marker
from headrace.model.errors import InvalidConfig

UNKNOWN = ""  # in place of end offsets, where they are not known
_NO_OFFSET = "-"  # of a source that had none yet
SHOWN_MAX = 4000  # characters of offsets in an error


class CommittedBatch(NamedTuple):
    """The last batch that a sink has of a query."""

    number: int
    ends: str


class CheckpointMismatch(InvalidConfig):
    """The checkpoint is not the one with which the sink was written."""

    def __init__(self, sink: str, committed: CommittedBatch, checkpoint: str, begin: CommittedBatch | None = None):
        """`begin`: what the slowest part of the sink has. A new checkpoint that begins there loses nothing."""
        self._said = sink, committed, checkpoint
        ends = (committed if begin is None else begin).ends
        offsets = f" {ends[:SHOWN_MAX]}, a source for each entry," if ends else ""
        part = "the sink" if begin is None else "the table"
        super().__init__(
            f"{sink} has batch {committed.number} of this query{_up_to(committed.ends)}; the checkpoint {checkpoint}. "
            "It is older than what was written, as after a restore from a backup, and continuing would lose records. "
            "Nothing was written. Restore the newer checkpoint, or begin with a new one (`headrace pipeline reset "
            f"NAME`) and set startingOffsets (`starting` in a pipeline's file) to the offsets{offsets} up to which "
            f"{part} was written"
        )

    def beginning_at(self, begin: CommittedBatch) -> "CheckpointMismatch":
        """The same of dead letters, which are committed before the table's rows: only the table's end loses nothing."""
        return CheckpointMismatch(*self._said, begin)


def batch_ends(checkpoint: str | None, number: int) -> str:
    """The end offsets of all sources, as comparable JSON; UNKNOWN if this process cannot read the checkpoint."""
    if checkpoint is None:
        return UNKNOWN
    try:
        lines = (_local(checkpoint) / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return UNKNOWN
    # The version of the file, what Spark says of the batch, then a line for each source.
    return json.dumps([_plain(line) for line in lines[2:]], separators=(",", ":"), sort_keys=True)


def _local(checkpoint: str) -> Path:
    """A path, or Hadoop's ways to write one of this machine: file:/a and file:///a."""
    return Path(checkpoint.removeprefix("file:").removeprefix("//"))


def _plain(line: str) -> Any:
    """Without what our source notes beside its offsets (client/reader/offsets.py)."""
    if line == _NO_OFFSET:
        return None
    try:
        offset = json.loads(line)
    except ValueError:
        return line
    if not isinstance(offset, dict) or is_marker(offset):
        return offset
    return {name: value for name, value in offset.items() if not name.startswith("#")}


def newest_number(numbered: Path) -> int | None:
    """The newest batch of one of Spark's logs; -1 if it has none, None if this process cannot read it."""
    try:
        names = [one.name.partition(".")[0] for one in numbered.iterdir()]
    except OSError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def check_repeated(sink: str, committed: CommittedBatch, number: int, ends: str) -> None:
    """CheckpointMismatch unless the batch, whose number the sink has already, is the one that it has."""
    if number != committed.number or (ends != committed.ends and UNKNOWN not in (ends, committed.ends)):
        raise CheckpointMismatch(sink, committed, f"plans batch {number}{_up_to(ends)}")


def check_newest(sink: str, committed: CommittedBatch, newest: int, ends: str) -> None:
    """The same before a query starts: the checkpoint has planned every batch that the sink has."""
    if committed.number > newest:
        raise CheckpointMismatch(
            sink, committed, f"ends with batch {newest}{_up_to(ends)}" if newest >= 0 else "has no batch"
        )
    if committed.number == newest:
        check_repeated(sink, committed, newest, ends)


def _up_to(ends: str) -> str:
    return f" up to {ends[:SHOWN_MAX]}" if ends else ""
