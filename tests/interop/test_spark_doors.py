"""Both doors: every scenario through `format("headrace")` and through Spark's own Kafka connector, row by row.

Against headrace and against Apache Kafka, so that the format is as good a client of one as of the other.
"""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.records import read_messages
from tests.interop.spark_doors import (
    BASE_MS,
    DOORS,
    KEPT,
    STREAM_SECONDS_MAX,
    WAIT_S,
    TwoStreams,
    comparable,
    fill,
    make_topics,
    new_name,
    options_for,
    read_by,
)
from tests.patience import awaited
from tests.spark.kit import started

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SEGMENT_MS = 100
COMPACTED = {"cleanup.policy": "compact", "segment.ms": str(SEGMENT_MS), "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture(scope="module")
def topics(bootstrap: str) -> dict[str, str]:
    """Topics with everything in them that a reader may meet."""
    names = {kind: new_name(kind) for kind in ("plain", "transactions", "compacted", "empty", "trimmed")}
    make_topics(
        bootstrap,
        NewTopic(names["plain"], 3, 1, config=KEPT),
        NewTopic(names["transactions"], 1, 1),
        NewTopic(names["empty"], 2, 1),
        NewTopic(names["compacted"], 1, 1, config=COMPACTED),
        NewTopic(names["trimmed"], 1, 1),
    )
    _fill_plain(bootstrap, names["plain"])
    _fill_transactions(bootstrap, names["transactions"])
    _fill_compacted(bootstrap, names["compacted"])
    fill(bootstrap, names["trimmed"], ({"value": b"%d" % n} for n in range(500)))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.delete_records([Partition(names["trimmed"], 0, 123)]).values()
    future.result(60)
    return names


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
        fill(bootstrap, topic, records, **{"compression.type": codec})
    fill(bootstrap, topic, [{"value": bytes(900_000), "partition": 0, "timestamp": BASE_MS}])


def _fill_transactions(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    for number in range(20):
        producer.begin_transaction()
        for part in range(30):
            producer.produce(topic, b"%d.%d" % (number, part))
        producer.flush(60)
        producer.abort_transaction(60) if number % 3 == 0 else producer.commit_transaction(60)


def _fill_compacted(bootstrap: str, topic: str) -> None:
    """Two segments, and a cleaner that has been there: what is read twice does not change in between.

    Both brokers go by the records' own times when they begin a segment. All of the first go have the same, so that
    there is one segment of them; the first of the second go closes it. That segment is cleaned once, and the active
    one never.
    """
    # Every 97th has a key of its own and stays, so that there are holes of many sizes.
    keys = [b"own-%d" % n if n % 97 == 0 else b"%d" % (n % 7) for n in range(2000)]
    again = [b"%d" % (n % 7) for n in range(300)]
    for sent, time_ms in ((keys, BASE_MS), (again, BASE_MS + 10 * SEGMENT_MS)):
        fill(bootstrap, topic, ({"key": key, "value": b"%d" % n, "timestamp": time_ms} for n, key in enumerate(sent)))
    awaited(
        lambda: sum(1 for _ in read_messages(bootstrap, topic, 0, "read_uncommitted")),
        (len(set(keys)) + len(again)).__eq__,
        "of the first segment one record is left for each key",
        WAIT_S,
    )


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
    "until times": (
        "plain",
        {
            "endingOffsetsByTimestamp": json.dumps(
                {"$": {"0": BASE_MS + 100_000, "1": BASE_MS + 290_001, "2": 2 * BASE_MS}}
            ),
        },
    ),
    "from offsets until a time": (
        "plain",
        {
            "startingOffsets": '{"$": {"0": 10, "1": -2, "2": 20}}',
            "endingTimestamp": str(BASE_MS + 250_000),
        },
    ),
    "by pattern": ("plain", {"subscribePattern": "(plain|trimmed|empty)-[0-9a-f]{8}"}),
    "by a part of the name": ("plain", {"subscribePattern": "lain-"}),
    "by a pattern that internal topics match": ("plain", {"subscribePattern": "^(__|trimmed-)"}),
    "by a pattern that nothing matches": ("plain", {"subscribePattern": "^lain-"}),
    "assigned": ("plain", {"assign": '{"$": [0, 2]}'}),
    "assigned by offset": (
        "plain",
        {
            "assign": '{"$": [2, 1]}',
            "startingOffsets": '{"$": {"1": 17, "2": -2}}',
            "endingOffsets": '{"$": {"1": -1, "2": 99}}',
        },
    ),
    "committed": ("transactions", {"kafka.isolation.level": "read_committed"}),
    "uncommitted": ("transactions", {"kafka.isolation.level": "read_uncommitted"}),
    "compacted": ("compacted", {}),
    "empty": ("empty", {}),
    "trimmed": ("trimmed", {}),
    "beyond what was trimmed": ("trimmed", {"startingOffsets": '{"$": {"0": 50}}', "failOnDataLoss": "false"}),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_batch_reads_agree(spark, bootstrap, topics, name):
    kind, scenario = SCENARIOS[name]
    options = options_for(bootstrap, topics[kind], scenario)
    found = {door: read_by(door, spark, options) for door in DOORS}
    assert len(found["headrace"]) == len(found["kafka"])
    assert found["headrace"] == found["kafka"]


REFUSED: dict[str, dict[str, str]] = {
    "no record is that new": {"startingTimestamp": str(2 * BASE_MS)},
    "offsets that leave a partition out": {"startingOffsets": '{"$": {"0": 1}}'},
    "an end at the beginning": {"endingOffsets": "earliest"},
    "a beginning behind the end": {"startingOffsets": '{"$": {"0": -2, "1": -2, "2": 99999}}'},
    "a time that ends before it begins": {
        "startingTimestamp": str(BASE_MS + 9000),
        "endingTimestamp": str(BASE_MS + 2000),
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(spark, bootstrap, topics, name):
    options = options_for(bootstrap, topics["plain"], REFUSED[name])
    for door in DOORS:
        with pytest.raises(Exception, match=r"(?i)offset"):  # each has words of its own
            read_by(door, spark, options)


STREAMS: dict[str, tuple[str, dict[str, str]]] = {
    name: SCENARIOS[name]
    for name in ("every column", "committed", "uncommitted", "compacted", "trimmed", "empty", "small tasks")
} | {
    "by pattern": SCENARIOS["by pattern"],
    "assigned": SCENARIOS["assigned"],
    "from a time": ("plain", {"startingTimestamp": str(BASE_MS + 150_000)}),
    # Of 1501 records the last batch has some 300: none is left waiting for more, neither here nor there.
    "enough in each batch": ("plain", {"minOffsetsPerTrigger": "200"}),
    "not waited for long": ("plain", {"minOffsetsPerTrigger": "399", "maxTriggerDelay": "1ms"}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_agree(spark, bootstrap, topics, tmp_path: Path, name):
    kind, scenario = STREAMS[name]
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    streams = TwoStreams(spark, tmp_path, options_for(bootstrap, topics[kind], limits | scenario))
    found = streams.catch_up()
    assert found["headrace"] == found["kafka"]
    batches = streams.batch_rows
    assert len(batches["headrace"]) == len(batches["kafka"]), batches
    assert all(max(rows, default=0) <= 400 + 3 for rows in batches.values()), "about: each partition gets one at least"


@pytest.mark.parametrize("kind", ["transactions", "trimmed"])
def test_history_of_a_topic_without_an_archive_is_the_topic(spark, bootstrap, topics, tmp_path: Path, kind):
    """Apache Kafka knows nothing of archives: asking it for one must not fail."""
    options = options_for(bootstrap, topics[kind], {"kafka.isolation.level": "read_committed"})
    expected = read_by("kafka", spark, options)
    assert read_by("headrace", spark, options | {"history": "true"}) == expected
    stream = spark.readStream.format("headrace").options(**options, history="true", startingOffsets="earliest").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = started(writer.option("path", str(tmp_path / "rows")).trigger(availableNow=True))
    assert query.awaitTermination(STREAM_SECONDS_MAX)
    assert comparable(spark.read.schema(stream.schema).parquet(str(tmp_path / "rows")).collect()) == expected
