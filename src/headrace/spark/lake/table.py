"""A lake table as a batch job sees it: which batch was the last, and how another becomes part of it.

A batch has an owner (a pipeline, an archive) and a number. Committing adds its files and remembers the number in one
step of the table's own log, so a batch that comes again after a crash is recognised and left out. Two drivers that
believe to be the only one meet in that step: the table takes one of them, the other looks again and finds its batch
there already.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.model.errors import HeadraceError, InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa

NO_BATCH = -1
# Somebody else changed the table between our look and our commit. Each time is a look at a newer table, so only
# a crowd of writers gets this far.
ATTEMPTS_MAX = 20


class TableChanged(HeadraceError):
    """Somebody else was faster; look again."""

    retriable = True


class SchemaMismatch(InvalidConfig):
    """The rows do not fit the table. What to do about it is in the text."""


class DataFile(NamedTuple):
    path: str  # absolute, or a URI
    size: int
    rows: int
    partition: Mapping[str, str | None]


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
        """Files and number in one step, if the table is still as of the last `refresh`; else TableChanged."""

    def fit(self, schema: "pa.Schema") -> None:
        """Make room for new columns; TableChanged if somebody else just did something of the kind.

        SchemaMismatch if the rows cannot be told apart from what is there.
        """

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
        except TableChanged:
            continue
        return True
    raise TableChanged(f"{table.location} changed {ATTEMPTS_MAX} times while batch {batch.number} was to be added")


def fit_once(table: LakeTable, schema: "pa.Schema") -> None:
    """Make room for new columns, where others may be about to make the same."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return table.fit(schema)
        except TableChanged:
            table.refresh()
    raise TableChanged(f"{table.location} changed {ATTEMPTS_MAX} times while columns were to be added")


def check_fits(there: "pa.Schema", rows: "pa.Schema", location: str) -> list[str]:
    """Names of columns that the rows have and the table has not; SchemaMismatch where a type differs."""
    known = {field.name: _said(field.type) for field in there}
    for field in rows:
        if known.get(field.name, _said(field.type)) != _said(field.type):
            raise SchemaMismatch(
                f"column {field.name} of {location} is {known[field.name]}, the rows have {field.type}; cast it in the "
                "pipeline's SQL, or write to another table"
            )
    return [field.name for field in rows if field.name not in known]


def _said(arrow_type: "pa.DataType") -> str:
    """As text; how wide the offsets of a string are is a matter of memory, not of the table."""
    return str(arrow_type).replace("large_", "").replace("_view", "")
