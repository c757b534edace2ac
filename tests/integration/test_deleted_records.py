"""Records that DeleteRecords has acknowledged as deleted: no later leader serves them."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace.testing import LocalCluster
from tests.integration.test_local_cluster import PATIENCE_S, Sender, wait_for_isr, wait_for_leader

ROUNDS, RECORDS = 3, 10


def test_new_leader_does_not_serve_deleted_records(tmp_path: Path) -> None:
    with LocalCluster(3, data_dir=tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for number in range(ROUNDS):
            topic = f"deleted-{number}"
            leader = number % 3 + 1
            replicas = [leader, *(one for one in cluster.brokers if one != leader)]
            configs = {"min.insync.replicas": "2"}
            admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas], config=configs)])[topic].result(
                PATIENCE_S
            )
            Sender(cluster, topic).send(RECORDS)
            before = TopicPartition(topic, 0, RECORDS - 1)
            (deletion,) = admin.delete_records([before]).values()
            assert deletion.result(PATIENCE_S).low_watermark == RECORDS - 1
            cluster.kill(leader)
            wait_for_leader(cluster, topic, leader.__ne__)
            fresh = AdminClient({"bootstrap.servers": cluster.bootstrap})  # knows the new leader from the start
            (earliest,) = fresh.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}).values()
            assert earliest.result(PATIENCE_S).offset == RECORDS - 1
            cluster.restart(leader)
            wait_for_leader(cluster, topic)


@pytest.mark.parametrize("keeps_files", [True, False], ids=["lagging replica", "replaced disk"])
def test_replica_joins_when_log_starts_inside_a_batch(tmp_path: Path, keeps_files: bool) -> None:
    with LocalCluster(3, data_dir=tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("batch", 1, replica_assignment=[[1, 3]])])["batch"].result(PATIENCE_S)
        wait_for_isr(cluster, "batch", 2)
        cluster.kill(3)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1_000})
        for number in range(RECORDS):
            producer.produce("batch", str(number), partition=0)
        assert producer.flush(PATIENCE_S) == 0
        wait_for_isr(cluster, "batch", 1)
        before = TopicPartition("batch", 0, RECORDS // 2)
        assert admin.delete_records([before])[before].result(PATIENCE_S).low_watermark == RECORDS // 2
        if not keeps_files:
            shutil.rmtree(Path(cluster.brokers[3].data_dir) / "batch-0")
        cluster.restart(3)
        wait_for_isr(cluster, "batch", 2)
        cluster.kill(1)
        wait_for_leader(cluster, "batch", (3).__eq__)
        place = TopicPartition("batch", 0)
        for spec, offset in ((OffsetSpec.earliest(), RECORDS // 2), (OffsetSpec.latest(), RECORDS)):
            fresh = AdminClient({"bootstrap.servers": cluster.brokers[3].bootstrap})  # knows the new leader
            (found,) = fresh.list_offsets({place: spec}).values()
            assert found.result(PATIENCE_S).offset == offset
