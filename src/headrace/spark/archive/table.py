"""The table of an archive: what it covers, what it holds, and how it grows by one commit after the other."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet as pq

from headrace.model.errors import InvalidConfig
from headrace.spark.archive.coverage import Coverage
from headrace.spark.archive.decoding import archive_schema
from headrace.spark.archive.settings import ArchiveSettings
from headrace.spark.lake.files import FileWriter, open_folder
from headrace.spark.lake.table import NO_BATCH, Batch, DataFile, LakeTable, TableChanged, fit_once
from headrace.spark.lake.upkeep import KeptTable

NOTES_TOPIC = "topic"


class View(NamedTuple):
    """The archive as of one commit: files and coverage belong together."""

    files: list[str]
    coverage: Coverage
    commits: int


class ArchiveTable:
    def __init__(self, settings: ArchiveSettings, table: LakeTable, upkeep: KeptTable) -> None:
        self.settings = settings
        self._table = table
        self.upkeep = upkeep
        self._schema = table.layout(archive_schema(settings.decoding)).file_schema

    @property
    def location(self) -> str:
        return self._table.location

    def view(self) -> View:
        """Fresh from the table's log."""
        self._table.refresh()
        number = self._table.last_batch(self.settings.owner)
        files = self._table.files()
        if number == NO_BATCH:
            self._refuse_foreign(files)
            return View([], Coverage(), 0)
        notes = self._table.notes(self.settings.owner)
        # A table whose log was trimmed has forgotten its notes; what its rows say is as right, only slower to find.
        coverage = Coverage.from_notes(notes) if notes else _coverage_of_rows(files)
        return View(files, coverage, number + 1)

    def _refuse_foreign(self, files: Sequence[str]) -> None:
        if files:
            raise InvalidConfig(
                f"{self.location} holds rows that are not of the topic {self.settings.topic} as it is now (was it "
                "deleted and re-created?); archive it to another path"
            )

    def new_file(self) -> FileWriter:
        folder = self.location.removeprefix("file://").rstrip("/")
        return FileWriter(f"{folder}/data/{uuid4().hex}.parquet", self._schema)

    def add(self, files: Sequence[DataFile], coverage: Coverage, number: int) -> None:
        """The next commit, if nobody else has made it; else TableChanged."""
        # Upkeep refreshes the table too: a rival's commit may be part of it by now, and would be no conflict any more.
        if self._table.last_batch(self.settings.owner) != number - 1:
            raise TableChanged(f"{self.location}: commit {number} is there already")
        notes = {NOTES_TOPIC: self.settings.topic, **coverage.to_notes()}
        self._table.add(files, Batch(self.settings.owner, number, notes))


def open_table(settings: ArchiveSettings, *, create: bool) -> ArchiveTable | None:
    """None: there is none yet, and none was to be made."""
    schema = archive_schema(settings.decoding)
    table: LakeTable
    upkeep: KeptTable
    if settings.kind == "delta":
        from headrace.spark.lake.delta import DeltaLakeTable
        from headrace.spark.lake.delta_upkeep import DeltaUpkeep

        if not create and not DeltaLakeTable.exists(settings.target):
            return None
        delta = DeltaLakeTable.open_or_create(settings.target, schema)
        table, upkeep = delta, DeltaUpkeep(delta.native)
    else:
        from headrace.spark.lake.iceberg import IcebergLakeTable
        from headrace.spark.lake.iceberg_upkeep import IcebergUpkeep

        if not create and not IcebergLakeTable.exists(settings.target):
            return None
        iceberg = IcebergLakeTable.open_or_create(settings.target, schema)
        table, upkeep = iceberg, IcebergUpkeep(iceberg.native)
    if create:
        fit_once(table, schema)
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
