"""A high watermark below the offsets that were planned: readers wait for it, and skip nothing."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from headrace.archive.settings import TABLE, change, read_settings, topic_view  # noqa: E402
from headrace.archive.worker import TopicArchiver  # noqa: E402
from headrace.client.reader.arrow_reader import (  # noqa: E402
    NotCommittedYet,
    ReadSpec,
    close_clusters,
    cluster_for,
    holds,
    read_range,
)
from headrace.client.reader.offsets import OffsetRange  # noqa: E402
from headrace.client.sync.client import ClientConfig  # noqa: E402
from headrace.client.sync.fetcher import FETCH_BYTES  # noqa: E402
from headrace.lake.table import MaintenancePolicy  # noqa: E402
from headrace.model.ids import TopicPartition  # noqa: E402
from headrace.testing import LocalCluster  # noqa: E402
from tests.integration.test_lagging_watermark import COMMITTED, NEVER_MS, TOPIC, wait_for  # noqa: E402
from tests.integration.test_local_cluster import PATIENCE_S, Sender  # noqa: E402
from tests.patience import until  # noqa: E402

PARTITION = TopicPartition(TOPIC, 0)
ALL = OffsetRange(PARTITION, 0, COMMITTED)
IMPATIENCE_S = 0.1  # the second empty fetch is one too many: each waits half a second
SCHEMA = pa.schema([("offset", pa.int64())])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"replica.high.watermark.checkpoint.interval.ms": NEVER_MS, "replica.lag.time.max.ms": "1000"}
    with LocalCluster(3, data_dir=tmp_path / "brokers", settings=settings) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        topic = NewTopic(TOPIC, 1, replica_assignment=[[3, 1, 2]], config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[TOPIC].result(PATIENCE_S)
        Sender(running, TOPIC).send(COMMITTED)
        yield running
        close_clusters()


def lose_the_watermark(cluster: LocalCluster) -> None:
    """The leader starts again alone: it holds all records and does not know that they are committed."""
    for killed in (1, 2):
        cluster.kill(killed)
    wait_for(cluster, 3, 3, {3}.__eq__)
    cluster.kill(3)
    cluster.restart(3)
    wait_for(cluster, 3, 3, {3}.__eq__)


def archiver_of(cluster: LocalCluster, folder: Path) -> TopicArchiver:
    client = cluster_for(ClientConfig(bootstrap=cluster.bootstrap, patience_s=IMPATIENCE_S))
    change(client, TOPIC, {TABLE: f"delta:{folder / 'archive'}"})
    settings = read_settings(client, topic_view(client, TOPIC))
    assert settings is not None
    return TopicArchiver(client, settings, MaintenancePolicy(), grace_s=0)


def plan(cluster: LocalCluster, *, patience_s: float) -> ReadSpec:
    client = ClientConfig(bootstrap=cluster.bootstrap, patience_s=patience_s)
    return ReadSpec(client, True, False, FETCH_BYTES, SCHEMA)


def offsets_of(batches: Iterator[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_readers_wait_for_lagging_high_watermark(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.client.reader.arrow_reader")
    archiver = archiver_of(cluster, tmp_path)
    lose_the_watermark(cluster)

    _, covered = archiver._written({0: 0}, {0: COMMITTED})  # as when the ends were asked for before the failover
    assert covered == {0: 0}, "covered without being read"
    impatient = plan(cluster, patience_s=IMPATIENCE_S)
    with pytest.raises(NotCommittedYet, match=r"high watermark is 0, and offsets 0 to 49 were planned") as behind:
        offsets_of(read_range(impatient, ALL))
    assert behind.value.position == 0
    client = cluster_for(impatient.client)
    assert holds(client, PARTITION, COMMITTED), "the log reaches that far"
    assert not holds(client, PARTITION, COMMITTED + 1)

    found: list[int] = []
    patient = plan(cluster, patience_s=PATIENCE_S)
    caplog.clear()
    reading = threading.Thread(target=lambda: found.extend(offsets_of(read_range(patient, ALL))))
    reading.start()
    until(lambda: "waiting at offset 0 for a high watermark of 50" in caplog.text, "an empty fetch", PATIENCE_S)
    cluster.restart(1)
    reading.join(PATIENCE_S)
    assert found == list(range(COMMITTED))
    done = archiver.round(topic_view(cluster_for(patient.client), TOPIC))
    assert (done.rows, done.coverage.ends, done.lag) == (COMMITTED, {0: COMMITTED}, 0)
