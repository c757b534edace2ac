"""The archive worker: copies topics into lake tables, and publishes the archived offsets for the retention hold.

A pass over a topic reads up to its end, writes a file, and commits file and coverage atomically. The next pass starts
at the table's last commit, so there is no other state: a worker that is killed leaves at most a file that no commit
references. If two workers archive one topic, the table accepts the commit of one of them and the other reads it
again.

The retention hold advances with a delay, because a query that has just read the table reads the records after it from
the topic. A failure of one topic does not affect others.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.archive.decode import RAW, ValueSchema, with_decoded
from headrace.archive.settings import (
    UNTIL,
    ArchiveSettings,
    archived_topics,
    change,
    readable_settings,
    rendered,
    topic_view,
)
from headrace.archive.table import ArchiveTable, Coverage, View, open_table
from headrace.client.core.errors import KafkaApiError
from headrace.client.reader.arrow_reader import NotCommittedYet, ReadSpec, read_range
from headrace.client.reader.offsets import OffsetRange
from headrace.client.sync.client import Cluster, TopicView
from headrace.client.sync.fetcher import FETCH_BYTES
from headrace.client.sync.offsets import EARLIEST, LATEST, Committed, commit_offsets, list_offsets
from headrace.lake.parquet import FileWriter
from headrace.lake.table import CommitConflict, MaintenancePolicy
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition

# Longer than a query takes between reading the table and reading the topic. Retention may wait that long.
GRACE_S = 300.0
# Minimum interval of config updates, which every broker receives. Frequent enough for retention, which runs every five
# minutes.
EVERY_S = 15.0


class RetentionGuard:
    def __init__(self, cluster: Cluster, settings: ArchiveSettings, grace_s: float) -> None:
        self._cluster, self._topic = cluster, settings.topic
        self._grace_s = grace_s
        self._told = dict(settings.until)
        self._told_at = float("-inf")
        self._waiting: deque[tuple[float, Coverage]] = deque()

    def publish(self, coverage: Coverage) -> None:
        now = time.monotonic()
        if not self._waiting or self._waiting[-1][1] != coverage:
            self._waiting.append((now, coverage))
        while len(self._waiting) > 1 and now - self._waiting[1][0] >= self._grace_s:
            self._waiting.popleft()
        since, ripe = self._waiting[0]
        is_young, is_soon = now - since < self._grace_s, now - self._told_at < min(EVERY_S, self._grace_s)
        if is_young or is_soon or ripe.ends == self._told:
            return
        change(self._cluster, self._topic, {UNTIL: rendered(ripe.ends)})
        self._told, self._told_at = dict(ripe.ends), now


log = logging.getLogger(__name__)

# Limits of one commit: large enough for large files, small enough to be repeated after a crash.
COMMIT_BYTES = 256 * 1024 * 1024
COMMIT_ROWS = 2_000_000


class NotDecoded(HeadraceError):
    """The decoder failed, which is a defect: a record that does not decode should be a row with `decode_error`."""


def decoded(batch: pa.RecordBatch, partition: TopicPartition, decoding: ValueSchema | None) -> pa.RecordBatch:
    """Decodes a batch. NotDecoded contains the first record that makes the decoder fail."""
    try:
        return with_decoded(batch, decoding)
    except Exception as error:
        offset = next((one for one in range(batch.num_rows) if _fails_alone(batch.slice(one, 1), decoding)), 0)
        raise NotDecoded(
            f"{partition}: the record at offset {batch.column('offset')[offset]} cannot be decoded: "
            f"{type(error).__name__} {error}"
        ) from error


def _fails_alone(row: pa.RecordBatch, decoding: ValueSchema | None) -> bool:
    try:
        with_decoded(row, decoding)
    except Exception:
        return True
    return False


class PassResult(NamedTuple):
    """Result of a pass over a topic."""

    rows: int
    coverage: Coverage
    lag: int  # available offsets that are not covered yet

    @property
    def is_behind(self) -> bool:
        return self.lag > 0


class TopicArchiver:
    def __init__(self, cluster: Cluster, settings: ArchiveSettings, upkeep: MaintenancePolicy, grace_s: float) -> None:
        self._cluster = cluster
        self.settings = settings
        self._upkeep = upkeep
        table = open_table(settings, create=True)
        assert table is not None, "it was to be made"
        self._table: ArchiveTable = table
        self._view: View | None = None
        self._published = RetentionGuard(cluster, settings, grace_s)
        self._plan = ReadSpec(cluster.settings, True, False, FETCH_BYTES, RAW)

    def round(self, topic: TopicView) -> PassResult:
        """Makes at most one commit. `lag` of the result is above 0 if there is more to archive."""
        view = self._view = self._view or self._table.view()
        log_starts, log_ends = self._edges(topic)
        positions = {one: view.coverage.position(one, log_starts[one]) for one in log_ends}
        if all(positions[one] >= log_ends[one] for one in log_ends):
            self._published.publish(view.coverage)
            return PassResult(0, view.coverage, 0)
        writer, ends = self._written(positions, log_ends)
        if ends == positions:
            writer.close()
            return PassResult(0, view.coverage, sum(log_ends[one] - positions[one] for one in log_ends))
        coverage = view.coverage.advanced(log_starts, ends)
        self._warn_of_loss(view.coverage, coverage)
        if not self._commit(view, writer, coverage):
            return PassResult(0, view.coverage, sum(log_ends[one] - positions[one] for one in log_ends))
        return PassResult(writer.rows, coverage, sum(log_ends[one] - coverage.ends[one] for one in log_ends))

    def _edges(self, topic: TopicView) -> tuple[dict[int, int], dict[int, int]]:
        def ask(time: int) -> dict[int, int]:
            asked = {TopicPartition(topic.name, one): time for one in topic.leaders}
            found = list_offsets(self._cluster, asked, read_committed=True)
            return {partition.partition: offset or 0 for partition, offset in found.items()}

        return self._cluster.patiently(f"requesting the offsets of {topic.name}", lambda: (ask(EARLIEST), ask(LATEST)))

    def _written(self, positions: dict[int, int], log_ends: dict[int, int]) -> tuple[FileWriter, dict[int, int]]:
        """Writes a file with the records after the positions, the partition with the largest lag first. Returns the
        file and the end offsets.
        """
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
                ends[one] = behind.position  # covers what was read only
                continue
            ends[one] = max(log_ends[one], positions[one])  # the last offsets may be control records
        return writer, ends

    def _commit(self, view: View, writer: FileWriter, coverage: Coverage) -> bool:
        """Commits the file. Returns False if another worker has committed first; the next pass reads its coverage."""
        file = writer.close()
        try:
            self._table.add([file] if file.rows else [], coverage, view.commits)
        except CommitConflict:
            self._view = None
            return False
        self._view = View([], coverage, view.commits + 1)
        self._show_position(coverage)
        self._published.publish(coverage)
        self._care()
        return True

    def _show_position(self, coverage: Coverage) -> None:
        """Commits the covered offsets to the consumer group, for tools that show lag."""
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
        except CommitConflict as error:
            log.info("%s: cared for later: %s", self._table.location, error)

    def _warn_of_loss(self, before: Coverage, after: Coverage) -> None:
        for one, count in after.lost.items():
            missed = count - before.lost.get(one, 0)
            if missed:
                log.error(
                    "%s-%d: %d offsets were deleted before they were archived; archive.before.delete=true would have "
                    "kept retention from removing them", self.settings.topic, one, missed,
                )  # fmt: skip


# Interval of reading the topics' configs: a newly enabled archive begins within this time.
REFRESH_S = 10.0

Tell = Callable[[ArchiveSettings, PassResult], None]


class ArchiveWorker:
    def __init__(
        self,
        cluster: Cluster,
        names: Sequence[str] = (),
        *,
        upkeep: MaintenancePolicy | None = None,
        grace_s: float = GRACE_S,
        tell: Tell = lambda settings, done: None,
    ) -> None:
        """`names`: archive these topics only; empty: all that have an archive."""
        self._cluster, self._names = cluster, names
        self._upkeep, self._grace_s = upkeep or MaintenancePolicy(), grace_s
        self._tell = tell
        self._archivers: dict[str, TopicArchiver] = {}
        self._settings: list[ArchiveSettings] = []
        self._looked_at = float("-inf")

    def run(self, stop: threading.Event, interval_s: float) -> None:
        """Archives until a stop request. A commit in progress is finished."""
        while not stop.is_set():
            try:
                is_behind = self.visit_all(stop)
            except (OSError, KafkaApiError) as error:
                log.error("The cluster does not respond; retrying: %s", error)
                is_behind = False
            if not is_behind:
                stop.wait(interval_s)

    def visit_all(self, stop: threading.Event | None = None) -> bool:
        """Makes one pass over each topic. Returns whether any has more to archive."""
        self._refresh()
        is_behind = False
        for settings in self._settings:
            if stop is not None and stop.is_set():
                return False
            done = self._attempt(settings, self._visit)
            is_behind |= done is not None and done.is_behind
        return is_behind

    def try_to_catch_up(self, settings: ArchiveSettings) -> PassResult | None:
        """Like `catch_up`, but logs a failure and returns None."""
        return self._attempt(settings, self.catch_up)

    def _attempt(self, settings: ArchiveSettings, work: Callable[[ArchiveSettings], PassResult]) -> PassResult | None:
        """Logs a failure of this topic and returns None, so that the next topic is archived."""
        try:
            return work(settings)
        except (HeadraceError, KafkaApiError, OSError, ValueError) as error:
            log.error("%s is not archived: %s", settings.topic, error)
        except Exception:
            log.exception("%s is not archived", settings.topic)
        self._archivers.pop(settings.topic, None)
        return None

    def catch_up(self, settings: ArchiveSettings) -> PassResult:
        """Makes passes until the topic's end is archived. Raises failures."""
        while (done := self._visit(settings)).is_behind:
            pass
        return done

    def _refresh(self) -> None:
        if time.monotonic() - self._looked_at < REFRESH_S:
            return
        if self._names:
            self._settings = readable_settings(self._cluster, self._names)
        else:
            self._settings = archived_topics(self._cluster)
        self._looked_at = time.monotonic()

    def _visit(self, settings: ArchiveSettings) -> PassResult:
        topic: TopicView = topic_view(self._cluster, settings.topic)
        if str(topic.topic_id) != settings.topic_id:
            self._looked_at = float("-inf")
            raise HeadraceError(f"the topic {settings.topic} was re-created; reading its archive configuration again")
        archiver = self._archivers.get(settings.topic)
        if archiver is None or not _is_same(archiver.settings, settings):
            archiver = self._archivers[settings.topic] = TopicArchiver(
                self._cluster, settings, self._upkeep, self._grace_s
            )
        done = archiver.round(topic)
        self._tell(settings, done)
        return done


def _is_same(ours: ArchiveSettings, theirs: ArchiveSettings) -> bool:
    """Compares settings without `until`, which this worker writes itself."""
    return ours._replace(until={}) == theirs._replace(until={})
