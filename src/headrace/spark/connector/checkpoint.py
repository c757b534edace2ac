"""Compares a streaming query's checkpoint with what its sink has committed.

Spark writes the end offsets of a micro-batch to the checkpoint before it runs the batch. A repeated batch has the
same number and the same end offsets. After a checkpoint was restored from a backup, Spark plans numbers that the sink
has already committed, with other end offsets. Such a batch must not be skipped as a repetition.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from headrace.client.reader.offsets import is_marker
from headrace.model.errors import InvalidConfig

UNKNOWN = ""  # stands for unknown end offsets
_NO_OFFSET = "-"  # a source without offsets so far
SHOWN_MAX = 4000  # characters of offsets in an error message


class CommittedBatch(NamedTuple):
    """The last batch of a query that a sink has committed."""

    number: int
    ends: str


class CheckpointMismatch(InvalidConfig):
    """The checkpoint does not match what was written to the sink."""

    def __init__(self, sink: str, committed: CommittedBatch, checkpoint: str, begin: CommittedBatch | None = None):
        """`begin` is the last batch of the part of the sink that is furthest behind. A new checkpoint that begins there
        loses nothing.
        """
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
        """Returns the mismatch of dead-letter records. They are committed before the rows of the table, so only a
        checkpoint that begins at the table's end loses nothing.
        """
        return CheckpointMismatch(*self._said, begin)


def batch_ends(checkpoint: str | None, number: int) -> str:
    """Returns the end offsets of all sources as comparable JSON; UNKNOWN if this process cannot read the checkpoint."""
    if checkpoint is None:
        return UNKNOWN
    try:
        lines = (_local(checkpoint) / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return UNKNOWN
    # The version of the file, Spark's metadata of the batch, then one line per source.
    return json.dumps([_plain(line) for line in lines[2:]], separators=(",", ":"), sort_keys=True)


def _local(checkpoint: str) -> Path:
    """Returns the path of a local checkpoint, which may also be a Hadoop URI: file:/a or file:///a."""
    return Path(checkpoint.removeprefix("file:").removeprefix("//"))


def _plain(line: str) -> Any:
    """Removes what the connector stores beside its offsets (client/reader/offsets.py)."""
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
    """Returns the newest batch of one of Spark's logs; -1 if it has none, None if this process cannot read it."""
    try:
        names = [one.name.partition(".")[0] for one in numbered.iterdir()]
    except OSError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def check_repeated(sink: str, committed: CommittedBatch, number: int, ends: str) -> None:
    """Raises CheckpointMismatch unless this batch, whose number the sink has committed, is the committed one."""
    if number != committed.number or (ends != committed.ends and UNKNOWN not in (ends, committed.ends)):
        raise CheckpointMismatch(sink, committed, f"plans batch {number}{_up_to(ends)}")


def check_newest(sink: str, committed: CommittedBatch, newest: int, ends: str) -> None:
    """Raises CheckpointMismatch unless the checkpoint has planned every batch that the sink has committed. For use
    before a query starts.
    """
    if committed.number > newest:
        raise CheckpointMismatch(
            sink, committed, f"ends with batch {newest}{_up_to(ends)}" if newest >= 0 else "has no batch"
        )
    if committed.number == newest:
        check_repeated(sink, committed, newest, ends)


def _up_to(ends: str) -> str:
    return f" up to {ends[:SHOWN_MAX]}" if ends else ""
