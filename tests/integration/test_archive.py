"""Archives of topics: what the commands do, what the table holds, and what retention leaves alone."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyarrow import parquet as pq

from headrace.archive.decode import DECODE_ERROR
from headrace.archive.settings import GUARD, SCHEMA, TABLE, ArchiveSettings, change, read_settings, topic_view
from headrace.archive.table import ArchiveTable, Coverage, open_table
from headrace.archive.worker import TopicArchiver
from headrace.cli.app import run
from headrace.client.core.errors import KafkaApiError
from headrace.client.reader import arrow_reader
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.offsets import EARLIEST, list_offsets
from headrace.lake import delta
from headrace.lake.table import MaintenancePolicy
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.model.ids import TopicPartition
from headrace.testing import LocalBroker
from tests import patience
from tests.integration.stable_offsets import until_stable

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(memory=True, settings={"log.retention.check.interval.ms": "200"}) as running:
        yield running


@pytest.fixture
def cluster(broker: LocalBroker) -> Iterator[Cluster]:
    cluster = Cluster(ClientConfig(bootstrap=broker.bootstrap))
    yield cluster
    cluster.close()


class Told(NamedTuple):
    code: int
    out: str
    err: str


class Kit:
    """A topic with an archive."""

    def __init__(self, broker: LocalBroker, cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker, self.cluster, self.folder, self.capsys = broker, cluster, folder, capsys
        self.producer = Producer({"bootstrap.servers": broker.bootstrap})

    def topic(self, name: str, kind: str = "delta", *, partitions: int = 1, schema: str = "", **configs: str) -> None:
        config = {key.replace("_", "."): value for key, value in configs.items()}
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        change(self.cluster, name, {TABLE: f"{kind}:{self.folder / name}", SCHEMA: schema, GUARD: "true"})

    def settings(self, name: str) -> ArchiveSettings:
        settings = read_settings(self.cluster, topic_view(self.cluster, name))
        assert settings is not None
        return settings

    def archiver(self, name: str, **upkeep: Any) -> TopicArchiver:
        return TopicArchiver(self.cluster, self.settings(name), MaintenancePolicy(**upkeep), grace_s=0)

    def archive(self, name: str, archiver: TopicArchiver | None = None) -> None:
        archiver = archiver or self.archiver(name)
        while archiver.round(topic_view(self.cluster, name)).is_behind:
            pass

    def table(self, name: str) -> ArchiveTable:
        table = open_table(self.settings(name), create=False)
        assert table is not None
        return table

    def rows(self, name: str) -> list[dict[str, Any]]:
        rows = [row for path in self.table(name).view().files for row in pq.read_table(_local(path)).to_pylist()]
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def produce(self, name: str, values: Sequence[bytes], **fields: Any) -> None:
        for value in values:
            self.producer.produce(name, value=value, **fields)
        assert self.producer.flush(30) == 0

    def headrace(self, *words: str) -> Told:
        code = run([*words, "--bootstrap", self.broker.bootstrap])
        return Told(code, *self.capsys.readouterr())


def _local(path: str) -> str:
    return path.removeprefix("file://")


@pytest.fixture
def kit(broker: LocalBroker, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Kit:
    return Kit(broker, cluster, tmp_path, capsys)


@KINDS
def test_a_record_keeps_everything_it_has(kit: Kit, kind: str) -> None:
    name = f"whole-{kind}"
    kit.topic(name, kind, partitions=2, schema="json:id bigint")
    headers = [("a", b"b"), ("c", None)]
    kit.produce(name, [b'{"id":1}'], key=b"k", partition=1, timestamp=1_700_000_000_123, headers=headers)
    kit.produce(name, [b"poison"], partition=0)
    kit.archive(name)
    poison, good = kit.rows(name)
    assert (good["topic"], good["partition"], good["offset"], good["timestampType"]) == (name, 1, 0, 0)
    assert good["timestamp"].timestamp() == 1_700_000_000.123
    assert (good["key"], good["value"], good["id"]) == (b"k", b'{"id":1}', 1)
    assert good["headers"] == [{"key": "a", "value": b"b"}, {"key": "c", "value": None}]
    assert (poison["id"], poison["key"], poison["headers"]) == (None, None, [])
    assert "not JSON" in poison[DECODE_ERROR]


@KINDS
def test_each_commit_says_what_it_covers_and_what_was_aborted_is_covered_too(kit: Kit, kind: str) -> None:
    name = f"commits-{kind}"
    kit.topic(name, kind)
    archiver = kit.archiver(name)
    transactions = Producer({"bootstrap.servers": kit.broker.bootstrap, "transactional.id": name})
    transactions.init_transactions(30)
    covered = []
    for end in (transactions.commit_transaction, transactions.abort_transaction):
        transactions.begin_transaction()
        transactions.produce(name, b"x")
        transactions.flush(30)
        end(30)
        until_stable(kit.broker.bootstrap, name, 2 * len(covered) + 2)
        kit.archive(name, archiver)
        covered.append(dict(kit.table(name).view().coverage.ends))
    assert covered == [{0: 2}, {0: 4}], "records and their markers"
    assert [row["offset"] for row in kit.rows(name)] == [0]


@KINDS
def test_small_files_become_one_and_old_ones_go(kit: Kit, kind: str) -> None:
    name = f"small-{kind}"
    kit.topic(name, kind)
    archiver = kit.archiver(name, small_files_max=3, keep_s=0)
    for number in range(5):
        kit.produce(name, [b"%d" % number])
        kit.archive(name, archiver)
    view = kit.table(name).view()
    assert len(view.files) == 2, "four were merged, and one came after"
    assert [row["value"] for row in kit.rows(name)] == [b"%d" % number for number in range(5)]
    assert (dict(view.coverage.ends), view.commits) == ({0: 5}, 5)
    there = [path for path in (kit.folder / name).rglob("*.parquet") if "_delta_log" not in path.parts]
    assert {str(path) for path in there} == {_local(path) for path in view.files}


def test_a_table_whose_log_was_trimmed_goes_on_from_its_rows(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "trimmed"
    kit.topic(name, partitions=2)
    kit.produce(name, [b"x"] * 3, partition=0)
    kit.produce(name, [b"x"] * 5, partition=1)
    kit.archive(name)
    # A commit by somebody else is all that the log remembers.
    DeltaTable(str(kit.folder / name)).alter.set_table_properties({"delta.appendOnly": "false"})
    monkeypatch.setattr(delta, "FIRST_LOOK", 1)
    monkeypatch.setattr(delta, "HISTORY_MAX", 1)
    assert kit.table(name).view().coverage == Coverage({0: 0, 1: 0}, {0: 3, 1: 5})
    kit.produce(name, [b"y"], partition=1)
    kit.archive(name)
    assert [(row["partition"], row["offset"]) for row in kit.rows(name)] == [
        *((0, offset) for offset in range(3)),
        *((1, offset) for offset in range(6)),
    ]


def test_retention_removes_what_is_archived_and_nothing_else(kit: Kit, cluster: Cluster) -> None:
    name = "guarded"
    kit.topic(name, retention_ms="1", internal_segment_bytes="2000", file_delete_delay_ms="0")
    archiver = kit.archiver(name)
    kit.produce(name, [b"x" * 100] * 100, timestamp=1_000_000)
    view = topic_view(cluster, name)
    archiver.round(view)
    kit.produce(name, [b"y" * 100] * 100, timestamp=1_000_000)
    until(lambda: log_start(kit, name) > 50)
    assert log_start(kit, name) <= 100, "what came later is not archived yet"
    kit.archive(name, archiver)
    until(lambda: log_start(kit, name) == 200)
    assert [row["offset"] for row in kit.rows(name)] == list(range(200))


def log_start(kit: Kit, name: str) -> int:
    partition = TopicPartition(name, 0)
    return list_offsets(kit.cluster, {partition: EARLIEST}, read_committed=False)[partition] or 0


def until(condition: Callable[[], bool]) -> None:
    patience.until(condition, "it comes true", 30)


def test_what_was_gone_before_it_was_archived_is_counted(kit: Kit, cluster: Cluster) -> None:
    name = "lossy"
    kit.topic(name)
    kit.produce(name, [b"x"] * 10)
    kit.archive(name)
    kit.produce(name, [b"x"] * 10)
    admin = AdminClient({"bootstrap.servers": kit.broker.bootstrap})
    for future in admin.delete_records([confluent_kafka.TopicPartition(name, 0, 15)]).values():
        future.result(30)
    kit.archive(name)
    assert [row["offset"] for row in kit.rows(name)] == [*range(10), *range(15, 20)]
    assert kit.table(name).view().coverage.lost == {0: 5}


def test_topic_unknown_to_a_lagging_broker_is_not_covered(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose metadata is behind does not know a topic that exists: none of its offsets were archived."""
    name = "lagging"
    kit.topic(name)
    kit.produce(name, [b"%d" % number for number in range(10)])
    archiver = kit.archiver(name)

    def unknown(_: Cluster, partition: TopicPartition) -> Any:
        raise KafkaApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")

    with monkeypatch.context() as lagging:
        lagging.setattr(Cluster, "leader_connection", unknown)
        lagging.setattr(arrow_reader, "MISSING_PATIENCE_S", 0.0, raising=False)
        with suppress(HeadraceError):
            kit.archive(name, archiver)
    assert kit.table(name).view().coverage.ends.get(0, 0) == 0
    kit.archive(name)
    assert [row["value"] for row in kit.rows(name)] == [b"%d" % number for number in range(10)]


def test_a_table_of_another_topic_is_refused(kit: Kit) -> None:
    kit.topic("first")
    kit.produce("first", [b"x"])
    kit.archive("first")
    kit.topic("second")
    refused = kit.headrace("archive", "enable", "second", "--to", "delta", "--path", str(kit.folder / "first"))
    assert refused.code == 1
    assert "is already archived to" in refused.err
    kit.headrace("archive", "disable", "second")
    refused = kit.headrace("archive", "enable", "second", "--to", "delta", "--path", str(kit.folder / "first"))
    assert refused.code == 2
    assert "archive it to another path" in refused.err


def test_the_commands_from_enabling_to_disabling(kit: Kit) -> None:
    name = "commanded"
    kit.topic(name)
    kit.headrace("archive", "disable", name)
    kit.produce(name, [b"x"] * 3)
    enabled = kit.headrace("archive", "enable", name, "--to", "delta", "--path", str(kit.folder / "lake"))
    assert enabled.code == 0, enabled.err
    assert kit.headrace("archive", "run", name, "--once", "--grace", "0").code == 0
    (row,) = json.loads(kit.headrace("archive", "status", name, "--json").out)
    assert (row["archived"], row["lag"], row["commits"], row["guard"]) == (3, 0, 1, True)
    assert row["partitions"][0]["retention_may_remove_below"] == 3
    metrics = kit.headrace("archive", "metrics").out.splitlines()
    assert f'headrace_archive_offset{{topic="{name}",partition="0"}} 3' in metrics
    assert f'headrace_archive_lag_records{{topic="{name}",partition="0"}} 0' in metrics
    assert f'headrace_archive_commits_total{{topic="{name}"}} 1' in metrics
    assert f'headrace_archive_guard_offset{{topic="{name}",partition="0"}} 3' in metrics
    assert kit.headrace("groups", "describe", f"headrace-archive-{name}").code == 0
    assert kit.headrace("archive", "disable", name).code == 0
    assert read_settings(kit.cluster, topic_view(kit.cluster, name)) is None


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["enable", "nothere", "--to", "delta", "--path", "/tmp/x"], 3, "there is no topic nothere"),
        (["enable", "mistaken", "--to", "hudi", "--path", "/tmp/x"], 2, "unknown table format hudi"),
        (["enable", "mistaken", "--to", "delta", "--path", "/tmp/x", "--json", "id bigintt"], 2, "is no type"),
        (["run", "mistaken", "--once"], 1, "has no archive"),
    ],
)
def test_mistakes_are_told(kit: Kit, words: list[str], code: int, complaint: str) -> None:
    if topic_view_or_none(kit, "mistaken") is None:
        kit.topic("mistaken")
        kit.headrace("archive", "disable", "mistaken")
    told = kit.headrace("archive", *words)
    assert (told.code, complaint in told.err) == (code, True), told.err


def topic_view_or_none(kit: Kit, name: str) -> Any:
    return kit.cluster.topics([name]).get(name)
