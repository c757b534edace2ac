"""A lake table, and its maintenance policy.

A lake table as a batch job sees it: which batch was the last, and how another becomes part of it.

A batch has an owner (a pipeline, an archive) and a number. Committing adds its files and remembers the number in one
step of the table's own log, so a batch that comes again after a crash is recognised and left out. Two drivers that
believe to be the only one meet in that step: the table takes one of them, the other looks again and finds its batch
there already.

The care for a table that grows by small commits: small files become large ones, and what nobody reads any more goes.

Neither changes a row, and neither is in a hurry: a table that somebody else has changed meanwhile is cared for later.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.model.errors import HeadraceError, InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa


NO_BATCH = -1
# Somebody else changed the table between our look and our commit. Each time is a look at a newer table, so only
# a crowd of writers gets this far.
ATTEMPTS_MAX = 20


class CommitConflict(HeadraceError):
    """Somebody else was faster; look again."""

    retriable = True


class SchemaMismatch(InvalidConfig):
    """The rows do not fit the table. What to do about it is in the text."""


class UnfitValue(InvalidConfig):
    """The table's format has no way to hold this value where it is."""


# Dates are days, timestamps microseconds since 1970.
PartitionValue = bool | int | Decimal | str | None


class DataFile(NamedTuple):
    path: str  # absolute, or a URI
    size: int
    rows: int
    partition: Mapping[str, PartitionValue]  # what all its rows have, by column


class Layout(NamedTuple):
    """How a table wants the files of given rows."""

    schema: "pa.Schema"  # of the rows, in the types of the table
    partition_by: Sequence[str]
    file_schema: "pa.Schema"  # in Delta without the partition columns: its log has their values


class Batch(NamedTuple):
    owner: str
    number: int
    notes: Mapping[str, str] = {}  # kept with the commit: which offsets it covers


class LakeTable(Protocol):
    location: str

    def last_batch(self, owner: str) -> int:
        """The number of the last batch of this owner, or NO_BATCH. As of the last `refresh`."""

    def notes(self, owner: str) -> Mapping[str, str]:
        """What was kept with that batch."""

    def add(self, files: Sequence[DataFile], batch: Batch) -> None:
        """Files and number in one step, if the table is still as of the last `refresh`; else CommitConflict."""

    def new_columns(self, schema: "pa.Schema") -> Sequence[str]:
        """Columns that such rows would add; SchemaMismatch if they do not fit the table."""

    def fit(self, schema: "pa.Schema") -> None:
        """Adds the new columns. CommitConflict if another writer just changed the schema; SchemaMismatch as above."""

    @property
    def partition_by(self) -> Sequence[str]:
        """The columns whose values divide the rows among files."""

    def layout(self, schema: "pa.Schema") -> Layout:
        """Of the files that `add` takes, for rows that fit."""

    def refresh(self) -> None: ...

    def files(self) -> list[str]:
        """The data files of the table, as of the last `refresh`."""


def commit_once(table: LakeTable, files: Sequence[DataFile], batch: Batch) -> bool:
    """Add the batch unless it is there already; False if it was."""
    for _ in range(ATTEMPTS_MAX):
        table.refresh()
        if table.last_batch(batch.owner) >= batch.number:
            return False
        try:
            table.add(files, batch)
        except CommitConflict:
            continue
        return True
    raise CommitConflict(f"{table.location} changed {ATTEMPTS_MAX} times while batch {batch.number} was to be added")


def evolve_schema_once(table: LakeTable, schema: "pa.Schema") -> None:
    """Make room for new columns, where others may be about to make the same."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return table.fit(schema)
        except CommitConflict:
            table.refresh()
    raise CommitConflict(f"{table.location} changed {ATTEMPTS_MAX} times while columns were to be added")


def check_fits(there: "pa.Schema", rows: "pa.Schema", location: str) -> list[str]:
    """Names of columns that the rows have and the table has not; SchemaMismatch where a type differs.

    Both in the table's own types, see `row_types.py`.
    """
    known = {field.name: field for field in there}
    by_lower_case = {name.lower(): name for name in known}
    for field in rows:
        other = by_lower_case.get(field.name.lower(), field.name)
        if other != field.name:
            raise SchemaMismatch(
                f"column {field.name} is {other} in {location}, and readers do not distinguish the two; use the"
                f" same case"
            )
        if field.name in known and known[field.name].type != field.type:
            raise SchemaMismatch(
                f"column {field.name} of {location} is {known[field.name].type}, the rows have {field.type}; "
                "cast it in the pipeline's SQL, or write to another table"
            )
    for field in there:
        if not field.nullable and field.name not in rows.names:
            raise SchemaMismatch(f"column {field.name} of {location} must not be null, and the rows do not have it")
    return [field.name for field in rows if field.name not in known]


def check_partitioning(table: LakeTable, wanted: Sequence[str]) -> None:
    """A table keeps the partitioning that it was made with; no `wanted` takes it as it is."""
    if wanted and list(table.partition_by) != list(wanted):
        now = f"is partitioned by {', '.join(table.partition_by)}" if table.partition_by else "is not partitioned"
        raise SchemaMismatch(
            f"{table.location} {now}, the sink has partition_by: {', '.join(wanted)}; use the same, or write to "
            "another table"
        )


class MaintenancePolicy(NamedTuple):
    small_bytes: int = 64 * 1024 * 1024  # half of what readers of lakes like a file to be
    small_files_max: int = 20  # opening so many costs a reader as much as reading one large one
    keep_s: float = 24 * 3600.0  # older snapshots go, and their files: no query runs for a day


class TableMaintenance(Protocol):
    def small_files(self, upkeep: MaintenancePolicy) -> int:
        """How many files would be merged; 0 while there are too few to bother."""

    def compact(self, upkeep: MaintenancePolicy) -> int:
        """Merge small files; how many there were. CommitConflict if somebody else was faster."""

    def expire(self, upkeep: MaintenancePolicy) -> int:
        """Let old snapshots go, and the files that only they name; how many files went."""
