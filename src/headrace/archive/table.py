"""The lake table of an archived topic, and the offsets that its commits cover.

Covered means that everything a `read_committed` consumer could read at these offsets is in the table. Aborted
records, control records and compacted records are covered without being rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet as pq

from headrace.archive.decode import archive_schema
from headrace.archive.settings import ArchiveSettings
from headrace.lake.parquet import FileWriter, open_folder
from headrace.lake.table import (
    NO_BATCH,
    Batch,
    CommitConflict,
    DataFile,
    LakeTable,
    TableMaintenance,
    evolve_schema_once,
)
from headrace.model.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Coverage:
    starts: Mapping[int, int] = field(default_factory=dict)  # partition → first offset that was ever available
    ends: Mapping[int, int] = field(default_factory=dict)  # partition → first offset that is not covered
    # Partition → number of offsets that were deleted before they were read.
    lost: Mapping[int, int] = field(default_factory=dict)

    def position(self, partition: int, log_start: int) -> int:
        """Returns the next offset to read, never before the log start."""
        return max(self.ends.get(partition, log_start), log_start)

    def advanced(self, log_starts: Mapping[int, int], ends: Mapping[int, int]) -> "Coverage":
        """Returns the coverage after a commit that has read up to these offsets."""
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
            raise InvalidConfig(
                f"the metadata {dict(notes)!r} of the table's last commit was not written by an archive"
            ) from None


def _dumped(numbers: Mapping[int, int]) -> str:
    return json.dumps({str(partition): numbers[partition] for partition in sorted(numbers)})


def _loaded(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}


NOTES_TOPIC = "topic"


class View(NamedTuple):
    """The archive as of one commit, with matching files and coverage."""

    files: list[str]
    coverage: Coverage
    commits: int


class ArchiveTable:
    def __init__(self, settings: ArchiveSettings, table: LakeTable, upkeep: TableMaintenance) -> None:
        self.settings = settings
        self._table = table
        self.upkeep = upkeep
        self._schema = table.layout(archive_schema(settings.decoding)).file_schema

    @property
    def location(self) -> str:
        return self._table.location

    def view(self) -> View:
        """Reads the newest commit from the table's log."""
        self._table.refresh()
        number = self._table.last_batch(self.settings.owner)
        files = self._table.files()
        if number == NO_BATCH:
            self._refuse_foreign(files)
            return View([], Coverage(), 0)
        notes = self._table.notes(self.settings.owner)
        # A trimmed log has no notes. The rows are equally accurate, but slower to read.
        coverage = Coverage.from_notes(notes) if notes else _coverage_of_rows(files)
        return View(files, coverage, number + 1)

    def _refuse_foreign(self, files: Sequence[str]) -> None:
        if files:
            raise InvalidConfig(
                f"{self.location} has rows that are not of the current topic {self.settings.topic} (was it "
                "deleted and re-created?); archive it to another path"
            )

    def new_file(self) -> FileWriter:
        folder = self.location.removeprefix("file://").rstrip("/")
        return FileWriter(f"{folder}/data/{uuid4().hex}.parquet", self._schema)

    def add(self, files: Sequence[DataFile], coverage: Coverage, number: int) -> None:
        """Commits files and coverage. Raises CommitConflict if another process has made this commit."""
        # Maintenance refreshes the table too, so it may already include a concurrent commit, which the table would then
        # not report as a conflict.
        if self._table.last_batch(self.settings.owner) != number - 1:
            raise CommitConflict(f"{self.location}: commit {number} already exists")
        notes = {NOTES_TOPIC: self.settings.topic, **coverage.to_notes()}
        self._table.add(files, Batch(self.settings.owner, number, notes))


def open_table(settings: ArchiveSettings, *, create: bool) -> ArchiveTable | None:
    """Opens the table of an archive; None if it does not exist and `create` is false."""
    schema = archive_schema(settings.decoding)
    table: LakeTable
    upkeep: TableMaintenance
    if settings.kind == "delta":
        from headrace.lake.delta import DeltaLakeTable, DeltaMaintenance

        if not create and not DeltaLakeTable.exists(settings.target):
            return None
        delta = DeltaLakeTable.open_or_create(settings.target, schema)
        table, upkeep = delta, DeltaMaintenance(delta.native)
    else:
        from headrace.lake.iceberg import IcebergLakeTable
        from headrace.lake.iceberg_compaction import IcebergMaintenance

        if not create and not IcebergLakeTable.exists(settings.target):
            return None
        iceberg = IcebergLakeTable.open_or_create(settings.target, schema)
        table, upkeep = iceberg, IcebergMaintenance(iceberg.native)
    if create:
        evolve_schema_once(table, schema)
    return ArchiveTable(settings, table, upkeep)


def _coverage_of_rows(files: Sequence[str]) -> Coverage:
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for path in files:
        filesystem, place = open_folder(path)
        rows = pq.read_table(place, filesystem=filesystem, columns=["partition", "offset"])
        for row in _edges(rows):
            partition = row["partition"]
            starts[partition] = min(row["offset_min"], starts.get(partition, row["offset_min"]))
            ends[partition] = max(row["offset_max"] + 1, ends.get(partition, 0))
    return Coverage(starts, ends)


def _edges(rows: pa.Table) -> list[dict[str, int]]:
    found: list[dict[str, int]] = (
        rows.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    )
    return found
