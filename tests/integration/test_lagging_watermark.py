"""A leader killed with SIGKILL below min.insync.replicas: LATEST is never below what was committed."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from headrace.client.sync.transport import Connection
from headrace.model.errors import ErrorCode
from headrace.storage.directory.checkpoint_files import HIGH_WATERMARKS
from headrace.testing import LocalCluster
from tests.integration.test_local_cluster import PATIENCE_S, Sender, everything
from tests.integration.told import told_or_none
from tests.patience import awaited, until

TOPIC, COMMITTED, LATEST = "lagging", 50, -1
NEVER_MS, OFTEN_MS = "3600000", "50"


class Offset(NamedTuple):
    error: int
    offset: int


def latest(cluster: LocalCluster, broker: int, isolation_level: int) -> Offset:
    query = ListOffsetsPartition(partition_index=i32(0), timestamp=i64(LATEST))
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(isolation_level),
        topics=(ListOffsetsTopic(name=TopicName(TOPIC), partitions=(query,)),),
    )
    with Connection("127.0.0.1", cluster.brokers[broker].port, PATIENCE_S) as connection:
        (topic,) = connection.call(request, ListOffsetsResponse).topics
    return Offset(topic.partitions[0].error_code, topic.partitions[0].offset)


def checkpointed(data_dir: Path) -> int:
    file = data_dir / HIGH_WATERMARKS
    rows = [line.split() for line in file.read_text().splitlines()[2:]] if file.exists() else []
    return next((int(row[2]) for row in rows if row[0] == TOPIC), 0)


def wait_for(cluster: LocalCluster, broker: int, leader: int, is_isr: Callable[[set[int]], bool]) -> None:
    def is_there() -> bool:
        told = told_or_none("127.0.0.1", cluster.brokers[broker].port, TOPIC)
        if told is None or not told.partitions:
            return False
        return told.partitions[0].leader == leader and is_isr(set(told.partitions[0].isr))

    until(is_there, f"{leader} leads with the wanted ISR", PATIENCE_S)


@pytest.mark.parametrize("interval_ms", [NEVER_MS, OFTEN_MS])
def test_latest_is_never_below_committed_after_kill(tmp_path: Path, interval_ms: str) -> None:
    settings = {"replica.high.watermark.checkpoint.interval.ms": interval_ms, "replica.lag.time.max.ms": "1000"}
    with LocalCluster(3, data_dir=tmp_path, settings=settings) as cluster:
        configs = {"min.insync.replicas": "2"}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(TOPIC, 1, replica_assignment=[[3, 1, 2]], config=configs)
        admin.create_topics([topic])[TOPIC].result(PATIENCE_S)
        sender = Sender(cluster, TOPIC)
        sender.send(COMMITTED)
        if interval_ms == OFTEN_MS:
            until(lambda: checkpointed(tmp_path / "broker-3") >= COMMITTED, "the checkpoint", PATIENCE_S)
        for killed in (1, 2):
            cluster.kill(killed)
        wait_for(cluster, 3, 3, {3}.__eq__)
        assert latest(cluster, 3, 0) == (0, COMMITTED), "a leader that was not restarted knows what is committed"
        cluster.kill(3)
        cluster.restart(3)
        wait_for(cluster, 3, 3, {3}.__eq__)
        known = Offset(ErrorCode.OFFSET_NOT_AVAILABLE, -1) if interval_ms == NEVER_MS else Offset(0, COMMITTED)
        assert {latest(cluster, 3, level) for level in (0, 1)} == {known}

        cluster.restart(1)
        found = awaited(lambda: latest(cluster, 3, 0), lambda one: not one.error, "an offset", PATIENCE_S)
        assert found == (0, COMMITTED)
        assert everything(cluster, TOPIC, COMMITTED) == sender.acked
