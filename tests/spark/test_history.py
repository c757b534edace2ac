"""A topic and its archive read as one: every record once, whatever the archiver has just done."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as f

from headrace.archive import worker as archiving
from headrace.archive.settings import GUARD, SCHEMA, TABLE, change, read_settings, topic_view
from headrace.archive.worker import ArchiveWorker
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.lake.table import MaintenancePolicy
from headrace.spark.sql.views import make_views
from tests.spark.kit import SparkKit

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
UPKEEP = MaintenancePolicy(small_files_max=5)


@pytest.fixture
def cluster(kit: SparkKit) -> Iterator[Cluster]:
    cluster = Cluster(ClientConfig(bootstrap=kit.bootstrap))
    yield cluster
    cluster.close()


def enable(cluster: Cluster, topic: str, kind: str, folder: Path, schema: str = "") -> None:
    change(cluster, topic, {TABLE: f"{kind}:{folder / 'table'}", SCHEMA: schema, GUARD: "true"})


def archive(cluster: Cluster, topic: str) -> None:
    settings = read_settings(cluster, topic_view(cluster, topic))
    assert settings is not None
    ArchiveWorker(cluster, upkeep=UPKEEP, grace_s=0).catch_up(settings)


@KINDS
def test_rows_come_from_the_archive_and_from_the_topic_and_look_the_same(
    kit: SparkKit, cluster: Cluster, kind: str, tmp_path: Path
) -> None:
    topic = kit.topic(2)
    enable(cluster, topic, kind, tmp_path)
    records = [{"value": b"%d" % n, "key": b"k", "partition": n % 2, "headers": [("h", b"1")]} for n in range(100)]
    kit.produce(topic, records[:60])
    archive(cluster, topic)
    kit.produce(topic, records[60:])
    straight = kit.read(topic, includeHeaders="true")
    together = kit.read(topic, includeHeaders="true", history="true")
    assert together.schema == straight.schema
    order = ("partition", "offset")
    assert together.orderBy(*order).collect() == straight.orderBy(*order).collect()


def test_what_retention_removed_is_still_there(kit: SparkKit, cluster: Cluster, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition

    topic = kit.topic()
    enable(cluster, topic, "delta", tmp_path)
    kit.numbers(topic, range(50))
    archive(cluster, topic)
    for future in kit.admin.delete_records([TopicPartition(topic, 0, 40)]).values():
        future.result(30)
    kit.numbers(topic, range(50, 60))
    assert len(kit.values(topic)) == 20
    assert kit.values(topic, history="true") == [b"%d" % n for n in range(60)]
    assert kit.read(topic, history="true", schema="offset bigint").count() == 60


def test_one_partition_of_an_archived_topic(kit: SparkKit, cluster: Cluster, tmp_path: Path) -> None:
    topic = kit.topic(2)
    enable(cluster, topic, "delta", tmp_path)
    for partition in (0, 1):
        kit.numbers(topic, range(10), partition=partition)
    archive(cluster, topic)
    kit.numbers(topic, range(10, 15), partition=1)
    rows = kit.read(None, assign=json.dumps({topic: [1]}), history="true", schema="value binary").collect()
    assert sorted(int(row.value) for row in rows) == list(range(15))


def test_a_gap_between_archive_and_topic_is_told(kit: SparkKit, cluster: Cluster, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition

    topic = kit.topic()
    enable(cluster, topic, "delta", tmp_path)
    kit.numbers(topic, range(10))
    archive(cluster, topic)
    kit.numbers(topic, range(10, 20))
    for future in kit.admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        future.result(30)
    with pytest.raises(Exception, match="offsets 10 to 14 are neither archived nor in the topic"):
        kit.read(topic, history="true").count()
    assert kit.read(topic, history="true", failOnDataLoss="false").count() == 15


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingOffsets": "earliest"}, "history reads all there is"),
        ({"kafka__isolation__level": "read_uncommitted"}, "committed records alone"),
        ({"history": "yes"}, "neither true nor false"),
    ],
)
def test_options_that_history_cannot_keep_are_refused(kit: SparkKit, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        kit.read("any", **{"history": "true", **options}).count()


class Load:
    """Producers and an archiver at work, until they are told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent = self.acknowledged = 0
        self.commits = 0
        self._bootstrap, self._topic = bootstrap, topic
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._archive)]
        self.failures: list[BaseException] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 2})

        def delivered(error: Any, message: Any) -> None:
            self.acknowledged += error is None

        while not self._stop.is_set():
            for _ in range(100):
                self.sent += 1
                producer.produce(self._topic, b"%d" % self.sent, on_delivery=delivered)
            producer.poll(0)
            self._stop.wait(0.02)  # not by `poll`, which returns at the first delivery
        producer.flush(60)

    def _archive(self) -> None:
        """A commit of a few hundred rows after the other, and a merge of files after every fifth."""
        try:
            cluster = Cluster(ClientConfig(bootstrap=self._bootstrap))
            runner = ArchiveWorker(cluster, [self._topic], upkeep=UPKEEP, grace_s=30)
            while not self._stop.is_set():
                runner.visit_all()
                self.commits += 1
            cluster.close()
        except BaseException as failure:
            self.failures.append(failure)


@KINDS
def test_the_count_is_right_at_every_instant(
    kit: SparkKit, cluster: Cluster, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "COMMIT_ROWS", 500)
    topic = kit.topic(3)
    enable(cluster, topic, kind, tmp_path)
    with Load(kit.bootstrap, topic) as load:
        for look in range(6):
            least = load.acknowledged
            if look % 2:
                spark = kit.session.newSession()
                make_views(spark, cluster, f"`{topic}`", {})
                frame = spark.table(f"`{topic}`")
            else:
                frame = kit.read(topic, history="true", schema="partition int, offset bigint")
            counts = (
                f.count("*").alias("rows"),
                f.countDistinct("offset").alias("offsets"),
                f.max("offset").alias("last"),
            )
            ends = frame.groupBy("partition").agg(*counts).collect()
            assert all(row["rows"] == row["offsets"] == row["last"] + 1 for row in ends), "each offset from 0 on once"
            assert least <= sum(row["rows"] for row in ends) <= load.sent
            time.sleep(0.1)
        assert load.commits > 3
