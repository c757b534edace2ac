"""The streaming source driven as Spark drives it, without a JVM: what each batch covers, whatever the topic does."""

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace.client.reader import arrow_reader
from headrace.client.reader.arrow_reader import DataLossError, close_clusters
from headrace.client.sync.client import Cluster
from headrace.spark.connector.datasource import HeadraceDataSource
from headrace.spark.connector.stream_reader import REFRESH_S
from headrace.testing import LocalBroker
from tests.integration.stable_offsets import until_stable


class Query:
    """What Spark keeps of a query: the offsets that are written down, and the rows that the sink got."""

    def __init__(self, topic: str, bootstrap: str, **options: Any) -> None:
        named = {name.replace("__", "."): str(value) for name, value in options.items()}
        if "subscribePattern" not in named:
            named["subscribe"] = topic
        self._options = {"kafka.bootstrap.servers": bootstrap, **named}
        self.planned: list[tuple[dict, dict]] = []  # the offset log
        self.done = 0  # the commit log
        self.rows: list[tuple[str, int, int, bytes]] = []
        self.restart()

    def restart(self, **changes: str) -> None:
        self._options |= changes
        source = HeadraceDataSource(options=self._options)
        self.reader = source.streamReader(source.schema())

    def plan(self) -> bool:
        """Write the next batch down, if there is anything to do. A batch that was not done comes first."""
        if len(self.planned) > self.done:
            return True
        start = self.planned[-1][1] if self.planned else _json(self.reader.initialOffset())
        end = _json(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end == start:
            return False
        self.planned.append((start, end))
        return True

    def run(self) -> list[tuple[str, int, int, bytes]]:
        """Do the batch that is written down; its rows."""
        start, end = self.planned[self.done]
        if not start.get("#initial"):
            assert self.planned[self.done - 1][1] == start
        rows = []
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                rows += list(zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True))
        self.rows += rows
        self.done += 1
        return rows

    def catch_up(self) -> list[int]:
        while self.plan():
            self.run()
        return self.numbers()

    def numbers(self) -> list[int]:
        return sorted(int(value) for *_, value in self.rows)


COLUMNS = ("topic", "partition", "offset", "value")


def _json(offset: dict) -> dict:
    return json.loads(json.dumps(offset))


class Stage:
    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.topic = f"in-{uuid4().hex[:8]}"

    def create(self, partitions: int = 1, name: str | None = None, **config: str) -> None:
        name = name or self.topic
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        self.admin.create_topics([topic])[name].result(30)

    def delete(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(30)

    def send(self, numbers, partition: int = 0, topic: str | None = None, **conf: Any) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 2, **conf})
        for number in numbers:
            producer.produce(topic or self.topic, b"%d" % number, b"key-%d" % (number % 3), partition=partition)
        assert producer.flush(30) == 0

    def trim(self, before: int) -> None:
        (future,) = self.admin.delete_records([Partition(self.topic, 0, before)]).values()
        future.result(30)

    def query(self, **options: Any) -> Query:
        options = {"startingOffsets": "earliest"} | options
        return Query(self.topic, self.broker.bootstrap, **options)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(memory=False, settings={"log.cleaner.backoff.ms": "50"}) as broker:
        yield broker
        close_clusters()


@pytest.fixture(autouse=True)
def quick_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that tests delete are gone for good: nothing is to be waited for."""
    monkeypatch.setattr(arrow_reader, "MISSING_PATIENCE_S", 0.0)


@pytest.fixture
def stage(broker: LocalBroker) -> Stage:
    return Stage(broker)


def test_every_record_once_in_order_and_then_nothing_to_do(stage):
    stage.create(partitions=2)
    stage.send(range(50), 0)
    stage.send(range(50, 80), 1)
    query = stage.query()
    assert query.catch_up() == list(range(80))
    offsets = [(partition, offset) for _, partition, offset, _ in query.rows]
    assert offsets == sorted(offsets)
    assert not query.plan()
    stage.send(range(80, 90), 1)
    assert query.catch_up() == list(range(90))


def test_a_first_batch_that_is_repeated_covers_what_was_written_down(stage):
    """Started at latest, planned, failed, started again: the batch is the same, whatever came since."""
    stage.create()
    stage.send(range(10))
    query = stage.query(startingOffsets="latest")
    assert query.plan()
    assert query.run() == []
    stage.send(range(10, 20))
    assert query.plan()
    stage.send(range(20, 30))
    query.restart()
    assert query.catch_up() == list(range(10, 30))

    fresh = stage.query(startingOffsets="latest")
    fresh.plan()
    stage.send(range(30, 40))
    fresh.restart()  # nothing was done yet, and "latest" is later now
    assert fresh.catch_up() == list(range(30, 40))


def test_limits_are_shared_and_reached(stage):
    stage.create(partitions=2)
    stage.send(range(900), 0)
    stage.send(range(900, 1000), 1)
    query = stage.query(maxOffsetsPerTrigger=100)
    assert query.plan()
    sizes = [partition for _, partition, _, _ in query.run()]
    assert (sizes.count(0), sizes.count(1)) == (90, 10)
    assert query.catch_up() == list(range(1000))
    assert 10 <= len(query.planned) <= 12


def test_available_now_ends_where_it_began_to_look(stage):
    stage.create()
    stage.send(range(10))
    query = stage.query(maxOffsetsPerTrigger=4)
    query.reader.prepareForTriggerAvailableNow()
    stage.send(range(10, 20))
    assert query.catch_up() == list(range(10))
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.catch_up() == list(range(20))


def test_few_records_wait_for_company_but_not_for_ever(stage):
    stage.create()
    query = stage.query(minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    assert query.catch_up() == []
    stage.send(range(9))
    assert not query.plan()
    stage.send([9])
    assert query.catch_up() == list(range(10))
    stage.send([10])
    assert not query.plan()
    query.restart(maxTriggerDelay="1ms")
    assert query.catch_up() == list(range(11))


def test_new_partitions_and_new_topics_are_read_from_their_beginning(stage):
    stage.create()
    stage.send(range(10))
    query = stage.query(subscribePattern=f"{stage.topic}.*")
    assert query.catch_up() == list(range(10))
    stage.admin.create_partitions([NewPartitions(stage.topic, 3)])[stage.topic].result(30)
    stage.send(range(10, 20), 2)
    stage.create(name=f"{stage.topic}-more")
    stage.send(range(20, 30), topic=f"{stage.topic}-more")
    time.sleep(REFRESH_S)
    assert query.plan()
    query.restart()
    assert query.catch_up() == list(range(30))


@pytest.mark.parametrize("seen_in_between", [True, False])
def test_a_topic_made_anew_is_loss_unless_that_is_allowed(stage, seen_in_between):
    stage.create()
    stage.send(range(10))
    strict, lenient = stage.query(), stage.query(failOnDataLoss="false")
    assert strict.catch_up() == lenient.catch_up() == list(range(10))
    stage.delete()
    time.sleep(REFRESH_S)
    if seen_in_between:
        with pytest.raises(DataLossError, match="was deleted"):
            strict.plan()
        assert lenient.catch_up() == list(range(10))
    stage.create()
    stage.send(range(100, 150))  # more than there were: the end alone would not betray the change
    time.sleep(REFRESH_S)
    with pytest.raises(DataLossError, match=r"deleted and re-created.*failOnDataLoss"):
        strict.plan()
    assert lenient.catch_up() == [*range(10), *range(100, 150)]
    strict.restart(failOnDataLoss="false")
    assert strict.catch_up() == [*range(10), *range(100, 150)]


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_topic_unknown_to_a_lagging_broker_keeps_its_position(stage, monkeypatch, lenient):
    stage.create()
    stage.send(range(10))
    query = stage.query(failOnDataLoss=lenient)
    assert query.catch_up() == list(range(10))
    stage.send(range(10, 15))
    monkeypatch.setattr(arrow_reader, "MISSING_PATIENCE_S", 60.0)
    topics, lagging = Cluster.topics, iter([True, True])

    def lag(self, *asked, **how):
        return {} if next(lagging, False) else topics(self, *asked, **how)

    monkeypatch.setattr(Cluster, "topics", lag)
    assert query.catch_up() == list(range(15)), "neither lost nor read again"


def test_start_behind_the_end_is_loss_unless_that_is_allowed(stage):
    """As of a topic that was made anew after a pipeline had written its start down: its records were skipped."""
    stage.create()
    stage.send(range(20))
    start = json.dumps({stage.topic: {"0": 50}})
    query = stage.query(startingOffsets=start)
    with pytest.raises(DataLossError, match="ends at 20, before the query's position 50"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.catch_up() == list(range(20))


def test_retention_that_passes_the_position(stage):
    stage.create()
    stage.send(range(10))
    query = stage.query()
    query.catch_up()
    stage.send(range(10, 30))
    stage.trim(15)
    query.plan()
    with pytest.raises(DataLossError, match="offsets 10 to 14 were deleted, 15 to 29 are left"):
        query.run()
    query.restart(failOnDataLoss="false")
    assert query.catch_up() == [*range(10), *range(15, 30)]


def test_everything_gone_behind_the_position(stage):
    stage.create()
    stage.send(range(30))
    query = stage.query(maxOffsetsPerTrigger=10, failOnDataLoss="false")
    query.plan()
    query.run()
    query.plan()
    stage.trim(30)
    assert query.run() == []
    stage.send(range(30, 40))
    assert query.catch_up() == [*range(10), *range(30, 40)]


def test_compaction_leaves_gaps_that_are_neither_loss_nor_rows(stage):
    stage.create(cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    for start in range(0, 300, 50):
        stage.send(range(start, start + 50))
        time.sleep(0.15)
    stage.send([300])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        query = stage.query(maxOffsetsPerTrigger=7)
        query.catch_up()
        if len(query.rows) < 150:
            break
        time.sleep(0.2)
    assert len(query.rows) < 150, "nothing was compacted"
    assert query.numbers()[-1] == 300
    assert len(set(query.numbers())) == len(query.rows)


def test_aborted_transactions_are_no_rows(stage):
    stage.create()
    producer = Producer({"bootstrap.servers": stage.broker.bootstrap, "transactional.id": stage.topic})
    producer.init_transactions(30)
    for number in range(10):
        producer.begin_transaction()
        producer.produce(stage.topic, b"%d" % number)
        producer.flush(30)
        producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(stage.topic, b"99")
    producer.flush(30)
    query = stage.query(kafka__isolation__level="read_committed", maxOffsetsPerTrigger=3)
    assert query.catch_up() == [0, 2, 4, 6, 8]
    producer.commit_transaction(30)
    until_stable(stage.broker.bootstrap, stage.topic, 22)
    assert query.catch_up() == [0, 2, 4, 6, 8, 99]


def test_the_group_shows_what_is_done(stage):
    stage.create(partitions=2)
    stage.send(range(50), 0)
    query = stage.query(commitGroup=f"{stage.topic}-group")
    query.catch_up()
    consumer = Consumer({"bootstrap.servers": stage.broker.bootstrap, "group.id": f"{stage.topic}-group"})
    committed = consumer.committed([Partition(stage.topic, 0), Partition(stage.topic, 1)], timeout=30)
    consumer.close()
    assert [one.offset for one in committed] == [50, 0]
    assert query.reader.reportLatestOffset() == {stage.topic: {"0": 50, "1": 0}}


def test_the_connectors_own_checkpoint_can_be_continued(stage):
    stage.create()
    stage.send(range(20))
    query = stage.query()
    query.planned = [({"#initial": 1}, {stage.topic: {"0": 5}})]
    query.done = 1
    assert query.catch_up() == list(range(5, 20))


def test_a_broker_that_is_restarted_in_the_middle_of_a_read(stage):
    stage.create()
    stage.send(range(3000), **{"batch.num.messages": 100})
    query = stage.query(kafka__max__partition__fetch__bytes=4000)
    query.plan()
    (partition,) = query.reader.partitions(*query.planned[0])
    rows, restarted = [], False
    for batch in query.reader.read(partition):
        rows += batch.column("offset").to_pylist()
        if len(rows) > 500 and not restarted:
            restarted = True
            stage.broker.kill()
            stage.broker.start()
    assert rows == list(range(3000))
