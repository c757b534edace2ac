"""Interface of a lake table to batch writers, and the table maintenance policy.

A batch has an owner (a pipeline, an archive) and a number. A commit adds its files and stores the number atomically
in the table's own log, so a batch that is repeated after a crash is detected and skipped. Of two concurrent drivers
the table accepts one commit; the other driver refreshes and finds its batch committed.

Maintenance compacts small files and expires old snapshots. It changes no rows and is not urgent: after a conflict
with another writer it is postponed.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.model.errors import HeadraceError, InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa


NO_BATCH = -1
# Attempts at a commit after conflicts. Each one is based on a newer table, so only many concurrent writers exhaust
# them.
ATTEMPTS_MAX = 20


class CommitConflict(HeadraceError):
    """A concurrent writer has committed first. The caller refreshes and retries."""

    retriable = True


class SchemaMismatch(InvalidConfig):
    """The rows do not match the table. The message contains the remedy."""


class UnfitValue(InvalidConfig):
    """The table's format cannot represent this value in this place."""


# Dates are days, timestamps microseconds since 1970.
PartitionValue = bool | int | Decimal | str | None


class DataFile(NamedTuple):
    path: str  # absolute, or a URI
    size: int
    rows: int
    partition: Mapping[str, PartitionValue]  # partition column → value of all rows


class Layout(NamedTuple):
    """Schemas of the files that a table accepts for given rows."""

    schema: "pa.Schema"  # of the rows, in the table's types
    partition_by: Sequence[str]
    file_schema: "pa.Schema"  # in Delta without the partition columns, whose values are in the log


class Batch(NamedTuple):
    owner: str
    number: int
    notes: Mapping[str, str] = {}  # stored with the commit: the offsets that it covers


class LakeTable(Protocol):
    location: str

    def last_batch(self, owner: str) -> int:
        """Returns the number of the owner's last batch, or NO_BATCH, as of the last `refresh`."""

    def notes(self, owner: str) -> Mapping[str, str]:
        """Returns the notes of that batch."""

    def add(self, files: Sequence[DataFile], batch: Batch) -> None:
        """Commits files and number atomically. Raises CommitConflict if the table changed after the last `refresh`."""

    def new_columns(self, schema: "pa.Schema") -> Sequence[str]:
        """Returns columns that these rows would add. Raises SchemaMismatch if the rows do not match the table."""

    def fit(self, schema: "pa.Schema") -> None:
        """Adds the new columns. Raises CommitConflict after a concurrent schema change, and SchemaMismatch as above."""

    @property
    def partition_by(self) -> Sequence[str]:
        """The partition columns."""

    def layout(self, schema: "pa.Schema") -> Layout:
        """Returns the schemas of files for `add`, for rows that match the table."""

    def refresh(self) -> None: ...

    def files(self) -> list[str]:
        """Returns the data files of the table, as of the last `refresh`."""


def commit_once(table: LakeTable, files: Sequence[DataFile], batch: Batch) -> bool:
    """Adds the batch. Returns False if it has been added before."""
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
    """Adds new columns, with retries against concurrent writers that may add the same."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return table.fit(schema)
        except CommitConflict:
            table.refresh()
    raise CommitConflict(f"{table.location} changed {ATTEMPTS_MAX} times while columns were to be added")


def check_fits(there: "pa.Schema", rows: "pa.Schema", location: str) -> list[str]:
    """Returns the columns that the rows have and the table has not. Raises SchemaMismatch if a type differs.

    Both schemas are in stored types, see `row_types.py`.
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
    """Raises SchemaMismatch if the table has another partitioning, which is fixed. An empty `wanted` accepts any."""
    if wanted and list(table.partition_by) != list(wanted):
        now = f"is partitioned by {', '.join(table.partition_by)}" if table.partition_by else "is not partitioned"
        raise SchemaMismatch(
            f"{table.location} {now}, the sink has partition_by: {', '.join(wanted)}; use the same, or write to "
            "another table"
        )


class MaintenancePolicy(NamedTuple):
    small_bytes: int = 64 * 1024 * 1024  # half of the file size that is efficient for readers
    small_files_max: int = 20  # opening this many files costs a reader as much as reading a large one
    keep_s: float = 24 * 3600.0  # older snapshots and their files are removed: no query runs for a day


class TableMaintenance(Protocol):
    def small_files(self, upkeep: MaintenancePolicy) -> int:
        """Returns the number of files that `compact` would merge; 0 if they are too few."""

    def compact(self, upkeep: MaintenancePolicy) -> int:
        """Merges small files and returns their number. Raises CommitConflict after a concurrent commit."""

    def expire(self, upkeep: MaintenancePolicy) -> int:
        """Expires old snapshots and removes files that only they reference. Returns the number of removed files."""
