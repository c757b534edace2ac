"""Archivers are killed at every step of a commit, and two of them at once; the table has each record once."""

import multiprocessing
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.archive.settings import GUARD, TABLE, change, read_settings, topic_view
from headrace.archive.table import ArchiveTable, open_table
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.testing import LocalBroker
from tests.torture.archive_life import live
from tests.torture.plan import Dice, kills

PARTITIONS = 3
ROWS_BETWEEN_LIVES_MAX = 2_000
ROWS_PER_COMMIT = 250
LIFE_SECONDS_MAX = 120
# Lives cost little where the process that they are forked from has loaded everything already.
LIVES = multiprocessing.get_context("forkserver")
LIVES.set_forkserver_preload(["tests.torture.archive_life"])


@pytest.mark.timeout(60 + 30 * kills(8, times=4))
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_record_is_archived_once_wherever_the_archiver_dies(kind: str, dice: Dice, tmp_path: Path) -> None:
    with LocalBroker(memory=True) as broker, ExitStack() as closing:
        cluster = Cluster(ClientConfig(bootstrap=broker.bootstrap))
        closing.callback(cluster.close)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        table = archived_topic(broker, cluster, kind, tmp_path)
        sent, died = 0, 0
        while died < kills(8, times=4):
            sent += send(producer, sent, dice.randrange(1, ROWS_BETWEEN_LIVES_MAX))
            # Every fourth life has a rival that archives the same topic.
            died += lives(broker.bootstrap, [dice.randrange(2**32) for _ in range(2 if dice.random() < 0.25 else 1)])
            check(table, sent, complete=False)
        finish(broker.bootstrap)
        check(table, sent, complete=True)
    print(f"{died} archivers killed, {sent} records, each once in {len(table.view().files)} files")


def archived_topic(broker: LocalBroker, cluster: Cluster, kind: str, folder: Path) -> ArchiveTable:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(30)
    change(cluster, "t", {TABLE: f"{kind}:{folder / 'table'}", GUARD: "true"})
    settings = read_settings(cluster, topic_view(cluster, "t"))
    assert settings is not None
    table = open_table(settings, create=True)
    assert table is not None
    return table


def send(producer: Producer, first: int, count: int) -> int:
    for number in range(first, first + count):
        producer.produce("t", value=b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    return count


def lives(bootstrap: str, seeds: list[int]) -> int:
    """How many of them were killed; others reached the topic's end."""
    processes = [LIVES.Process(target=live, args=(bootstrap, "t", seed, 4, ROWS_PER_COMMIT)) for seed in seeds]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIFE_SECONDS_MAX)
        assert process.exitcode in (0, -9), f"an archiver ended with {process.exitcode}"
    return sum(process.exitcode == -9 for process in processes)


def finish(bootstrap: str) -> None:
    while lives(bootstrap, [0]):
        pass


def check(table: ArchiveTable, sent: int, *, complete: bool) -> None:
    from pyarrow import parquet as pq

    view = table.view()
    seen: Counter[tuple[int, int]] = Counter()
    values: set[int] = set()
    for path in view.files:
        rows = pq.read_table(path.removeprefix("file://"), columns=["partition", "offset", "value"])
        seen.update(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        values.update(map(int, rows["value"].to_pylist()))
    assert seen == Counter({(one, offset): 1 for one, end in view.coverage.ends.items() for offset in range(end)})
    assert not view.coverage.lost
    if complete:
        assert values == set(range(sent))
