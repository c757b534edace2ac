"""Brings the archive of one topic up to the topic's end: read, write a file, commit file and coverage in one step.

The table's last commit is where the next one begins, so there is no other state: an archiver that is killed at any
point leaves at worst a file that no commit names. Two archivers of one topic meet at the commit, which the table takes
from one of them; the other looks again.
"""

import logging
from typing import NamedTuple

import pyarrow as pa

from headrace.client.blocking.cluster import Cluster, TopicView
from headrace.client.blocking.fetching import FETCH_BYTES
from headrace.client.blocking.offsets import EARLIEST, LATEST, Committed, commit_offsets, list_offsets
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition
from headrace.spark.archive.coverage import Coverage
from headrace.spark.archive.decoding import RAW, Decoding, with_decoded
from headrace.spark.archive.publishing import Published
from headrace.spark.archive.settings import ArchiveSettings
from headrace.spark.archive.table import ArchiveTable, View, open_table
from headrace.spark.lake.files import FileWriter
from headrace.spark.lake.table import TableChanged
from headrace.spark.lake.upkeep import Upkeep
from headrace.spark.planning import OffsetRange
from headrace.spark.reading import NotCommittedYet, ReadPlan, read_range

log = logging.getLogger(__name__)

# One commit takes no more than this: large enough for large files, small enough to be written again after a crash.
COMMIT_BYTES = 256 * 1024 * 1024
COMMIT_ROWS = 2_000_000


class NotDecoded(HeadraceError):
    """The decoder failed, which is a defect: a record that does not fit its columns is a row with `decode_error`."""


def decoded(batch: pa.RecordBatch, partition: TopicPartition, decoding: Decoding | None) -> pa.RecordBatch:
    """NotDecoded names the first record that the decoder fails at."""
    try:
        return with_decoded(batch, decoding)
    except Exception as error:
        offset = next((one for one in range(batch.num_rows) if _fails_alone(batch.slice(one, 1), decoding)), 0)
        raise NotDecoded(
            f"{partition}: the record at offset {batch.column('offset')[offset]} cannot be decoded: "
            f"{type(error).__name__} {error}"
        ) from error


def _fails_alone(row: pa.RecordBatch, decoding: Decoding | None) -> bool:
    try:
        with_decoded(row, decoding)
    except Exception:
        return True
    return False


class Round(NamedTuple):
    """What a visit to the topic came to."""

    rows: int
    coverage: Coverage
    lag: int  # offsets that were there and are not covered yet

    @property
    def is_behind(self) -> bool:
        return self.lag > 0


class Archiver:
    def __init__(self, cluster: Cluster, settings: ArchiveSettings, upkeep: Upkeep, grace_s: float) -> None:
        self._cluster = cluster
        self.settings = settings
        self._upkeep = upkeep
        table = open_table(settings, create=True)
        assert table is not None, "it was to be made"
        self._table: ArchiveTable = table
        self._view: View | None = None
        self._published = Published(cluster, settings, grace_s)
        self._plan = ReadPlan(cluster.settings, True, False, FETCH_BYTES, RAW)

    def round(self, topic: TopicView) -> Round:
        """At most one commit. `lag` tells whether there is more."""
        view = self._view = self._view or self._table.view()
        log_starts, log_ends = self._edges(topic)
        positions = {one: view.coverage.position(one, log_starts[one]) for one in log_ends}
        if all(positions[one] >= log_ends[one] for one in log_ends):
            self._published.publish(view.coverage)
            return Round(0, view.coverage, 0)
        writer, ends = self._written(positions, log_ends)
        if ends == positions:
            writer.close()
            return Round(0, view.coverage, sum(log_ends[one] - positions[one] for one in log_ends))
        coverage = view.coverage.advanced(log_starts, ends)
        self._warn_of_loss(view.coverage, coverage)
        if not self._commit(view, writer, coverage):
            return Round(0, view.coverage, sum(log_ends[one] - positions[one] for one in log_ends))
        return Round(writer.rows, coverage, sum(log_ends[one] - coverage.ends[one] for one in log_ends))

    def _edges(self, topic: TopicView) -> tuple[dict[int, int], dict[int, int]]:
        def ask(time: int) -> dict[int, int]:
            asked = {TopicPartition(topic.name, one): time for one in topic.leaders}
            found = list_offsets(self._cluster, asked, read_committed=True)
            return {partition.partition: offset or 0 for partition, offset in found.items()}

        return self._cluster.patiently(f"requesting the offsets of {topic.name}", lambda: (ask(EARLIEST), ask(LATEST)))

    def _written(self, positions: dict[int, int], log_ends: dict[int, int]) -> tuple[FileWriter, dict[int, int]]:
        """A file with what follows the positions, the partition with most of it first, and up to where that is."""
        writer = self._table.new_file()
        ends = dict(positions)
        for one in sorted(log_ends, key=lambda one: positions[one] - log_ends[one]):
            wanted = OffsetRange(TopicPartition(self.settings.topic, one), positions[one], log_ends[one])
            try:
                for batch in read_range(self._plan, wanted):
                    writer.write(decoded(batch, wanted.partition, self.settings.decoding))
                    ends[one] = batch.column("offset")[-1].as_py() + 1
                    if writer.bytes >= COMMIT_BYTES or writer.rows >= COMMIT_ROWS:
                        return writer, ends
            except NotCommittedYet as behind:
                log.warning("%s", behind)
                ends[one] = behind.position  # covered is what was read, and no more
                continue
            ends[one] = max(log_ends[one], positions[one])  # behind the last row there may be markers
        return writer, ends

    def _commit(self, view: View, writer: FileWriter, coverage: Coverage) -> bool:
        """False: somebody else has gone on; up to where, the next round will see."""
        file = writer.close()
        try:
            self._table.add([file] if file.rows else [], coverage, view.commits)
        except TableChanged:
            self._view = None
            return False
        self._view = View([], coverage, view.commits + 1)
        self._show_position(coverage)
        self._published.publish(coverage)
        self._care()
        return True

    def _show_position(self, coverage: Coverage) -> None:
        """For tools that show lag; nothing depends on it."""
        offsets = {TopicPartition(self.settings.topic, one): Committed(end) for one, end in coverage.ends.items()}
        self._cluster.patiently(
            "committing positions", lambda: commit_offsets(self._cluster, self.settings.group, offsets)
        )

    def _care(self) -> None:
        try:
            if self._table.upkeep.small_files(self._upkeep):
                merged = self._table.upkeep.compact(self._upkeep)
                removed = self._table.upkeep.expire(self._upkeep)
                log.info("%s: merged %d files, removed %d", self._table.location, merged, removed)
        except TableChanged as error:
            log.info("%s: cared for later: %s", self._table.location, error)

    def _warn_of_loss(self, before: Coverage, after: Coverage) -> None:
        for one, count in after.lost.items():
            missed = count - before.lost.get(one, 0)
            if missed:
                log.error(
                    "%s-%d: %d offsets were deleted before they were archived; archive.before.delete=true would have "
                    "kept retention from removing them", self.settings.topic, one, missed,
                )  # fmt: skip
