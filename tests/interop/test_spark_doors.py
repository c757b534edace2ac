"""Both doors: every scenario through `format("headrace")` and through Spark's own Kafka connector, row by row.

Against headrace and against Apache Kafka, so that the format is as good a client of one as of the other.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.tools import spark_connector
from headrace.testing import LocalBroker
from tests.interop.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

DOORS = ("headrace", "kafka")
BASE_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.jars", spark_connector())
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["headrace", "apache kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "headrace":
        with LocalBroker(memory=False) as broker:
            yield broker.bootstrap
    else:
        with ApacheKafka(tmp_path_factory.mktemp("kafka")) as server:
            yield server.bootstrap


@pytest.fixture(scope="module")
def topics(bootstrap: str) -> dict[str, str]:
    """Topics with everything in them that a reader may meet."""
    names = {kind: f"{kind}-{uuid4().hex[:8]}" for kind in ("plain", "transactions", "compacted", "empty", "trimmed")}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    compacted = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    # Its records are of 2023: a broker's retention would take them away in the middle of a comparison.
    kept = {"retention.ms": "-1"}
    made = [
        NewTopic(names["plain"], 3, 1, config=kept),
        NewTopic(names["transactions"], 1, 1),
        NewTopic(names["empty"], 2, 1),
    ]
    made += [NewTopic(names["compacted"], 1, 1, config=compacted), NewTopic(names["trimmed"], 1, 1)]
    for future in admin.create_topics(made).values():
        future.result(60)
    _fill_plain(bootstrap, names["plain"])
    _fill_transactions(bootstrap, names["transactions"])
    _fill(bootstrap, names["compacted"], ({"key": b"%d" % (n % 7), "value": b"%d" % n} for n in range(2000)))
    _fill(bootstrap, names["trimmed"], ({"value": b"%d" % n} for n in range(500)))
    (future,) = admin.delete_records([Partition(names["trimmed"], 0, 123)]).values()
    future.result(60)
    return names


def _fill(bootstrap: str, topic: str, records: Any, **conf: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **conf})
    for record in records:
        producer.produce(topic, **record)
        producer.poll(0)
    assert producer.flush(60) == 0


def _fill_plain(bootstrap: str, topic: str) -> None:
    for partition, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        records = (
            {
                "value": None if n % 11 == 0 else b"%d-" % n * (n % 40),
                "key": None if n % 5 == 0 else b"key-%d" % n,
                "partition": partition % 3,
                "timestamp": BASE_MS + 1000 * n + partition,
                "headers": [("h", b"%d" % n), ("none", None)] if n % 3 == 0 else [],
            }
            for n in range(300)
        )
        _fill(bootstrap, topic, records, **{"compression.type": codec})
    _fill(bootstrap, topic, [{"value": bytes(900_000), "partition": 0, "timestamp": BASE_MS}])


def _fill_transactions(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    for number in range(20):
        producer.begin_transaction()
        for part in range(30):
            producer.produce(topic, b"%d.%d" % (number, part))
        producer.flush(60)
        producer.abort_transaction(60) if number % 3 == 0 else producer.commit_transaction(60)


SCENARIOS: dict[str, tuple[str, dict[str, str]]] = {
    "every column": ("plain", {"includeHeaders": "true"}),
    "many tasks": ("plain", {"minPartitions": "11"}),
    "small tasks": ("plain", {"maxRecordsPerPartition": "70"}),
    "by offset": (
        "plain",
        {
            "startingOffsets": '{"$": {"0": 100, "1": -2, "2": 250}}',
            "endingOffsets": '{"$": {"0": 200, "1": 7, "2": -1}}',
        },
    ),
    "by time": ("plain", {"startingTimestamp": str(BASE_MS + 50_000), "endingTimestamp": str(BASE_MS + 200_000)}),
    "by times": (
        "plain",
        {
            "startingOffsetsByTimestamp": json.dumps(
                {"$": {"0": BASE_MS + 1, "1": BASE_MS + 290_000, "2": 2 * BASE_MS}}
            ),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ),
    "committed": ("transactions", {"kafka.isolation.level": "read_committed"}),
    "uncommitted": ("transactions", {"kafka.isolation.level": "read_uncommitted"}),
    "compacted": ("compacted", {}),
    "empty": ("empty", {}),
    "trimmed": ("trimmed", {}),
    "beyond what was trimmed": ("trimmed", {"startingOffsets": '{"$": {"0": 50}}', "failOnDataLoss": "false"}),
}


def _options(bootstrap: str, topic: str, scenario: dict[str, str]) -> dict[str, str]:
    written = {name: value.replace("$", topic) for name, value in scenario.items()}
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **written}


def _sorted(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


def _without_null_headers(rows: list[Any]) -> list[Any]:
    """The one difference that is meant: the connector has null where there are no headers, we have an empty list."""
    return [row.asDict(recursive=True) | ({"headers": row.headers or []} if "headers" in row else {}) for row in rows]


@pytest.mark.parametrize("name", SCENARIOS)
def test_batch_reads_agree(spark, bootstrap, topics, name):
    kind, scenario = SCENARIOS[name]
    found = {}
    for door in DOORS:
        frame = spark.read.format(door).options(**_options(bootstrap, topics[kind], scenario)).load()
        found[door] = _without_null_headers(_sorted(frame.collect()))
    assert len(found["headrace"]) == len(found["kafka"])
    assert [_plain(row) for row in found["headrace"]] == [_plain(row) for row in found["kafka"]]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    if "headers" in row:
        row["headers"] = [(header["key"], header["value"]) for header in row["headers"]]
    return row


STREAMS = ("every column", "committed", "uncommitted", "compacted", "trimmed", "empty", "small tasks")


@pytest.mark.parametrize("name", STREAMS)
def test_streams_agree(spark, bootstrap, topics, tmp_path: Path, name):
    kind, scenario = SCENARIOS[name]
    found = {}
    for door in DOORS:
        options = _options(bootstrap, topics[kind], scenario) | {
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "400",
        }
        stream = spark.readStream.format(door).options(**options).load()
        target = tmp_path / door
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / f"{door}-checkpoint"))
            .trigger(availableNow=True)
            .start(str(target))
        )
        assert query.awaitTermination(300)
        written = spark.read.schema(stream.schema).parquet(str(target)).collect()
        found[door] = [_plain(row) for row in _without_null_headers(_sorted(written))]
    assert found["headrace"] == found["kafka"]


@pytest.mark.parametrize("writer", DOORS)
def test_what_one_door_writes_both_read_alike(spark, bootstrap, writer):
    topic = f"written-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 5, 1)])[topic].result(60)
    frame = spark.range(2000).selectExpr(
        "if(id % 7 = 0, null, cast(id as string)) as key",
        "if(id % 13 = 0, null, repeat(cast(id as string), 3)) as value",
        "if(id % 3 = 0, array(named_struct('key', 'h', 'value', cast('x' as binary))), array()) as headers",
    )
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    frame.write.format(writer).options(**options, includeHeaders="true").mode("append").save()
    read = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    found = {
        door: [
            _plain(row)
            for row in _without_null_headers(_sorted(spark.read.format(door).options(**read).load().collect()))
        ]
        for door in DOORS
    }
    assert len(found["kafka"]) == 2000
    assert found["headrace"] == found["kafka"]


def test_keys_go_to_the_same_partitions(spark, bootstrap):
    placed = {}
    for door in DOORS:
        topic = f"placed-{door}-{uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, 7, 1)])[topic].result(60)
        frame = spark.range(1000).selectExpr("repeat(cast(id as string), int(id % 40) + 1) as key", "'v' as value")
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        frame.write.format(door).options(**options).mode("append").save()
        read = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
        rows = spark.read.format("kafka").options(**read).load().collect()
        placed[door] = {bytes(row.key): row.partition for row in rows}
    assert placed["headrace"] == placed["kafka"]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_stream_is_copied_through_apache_kafka_too(spark, bootstrap, topics, tmp_path: Path, guarantee):
    target = f"copy-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(target, 2, 1)])[target].result(60)
    options = {"kafka.bootstrap.servers": bootstrap}
    stream = spark.readStream.format("headrace").options(
        **options, subscribe=topics["trimmed"], startingOffsets="earliest", maxOffsetsPerTrigger="100"
    )
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format("headrace")
        .options(**options, topic=target, deliveryGuarantee=guarantee)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert query.exception() is None
    read = options | {"subscribe": target, "kafka.isolation.level": "read_committed"}
    rows = spark.read.format("kafka").options(**read).load().collect()
    assert sorted(int(row.value) for row in rows) == list(range(123, 500))
