"""The sink: rows become records, in the right place, once or at least once."""

import json
import shutil
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer

# A few batches of some seconds where nothing else runs, and minutes on a machine full of tests.
BATCHES_S = 300


def writer(kit, frame, topic=None, **options):
    written = frame.write.format("headrace").option("kafka.bootstrap.servers", kit.bootstrap).mode("append")
    if topic is not None:
        written = written.option("topic", topic)
    for name, value in options.items():
        written = written.option(name.replace("__", "."), value)
    return written


def test_rows_come_back_as_they_were_written(kit):
    topic = kit.topic(partitions=3)
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    schema = (
        "key binary, value binary, partition int, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>"
    )
    rows = [
        (b"k", b"v", 2, at, [("h", b"1"), ("n", None)]),
        (None, None, 0, at, []),
        (b"", b"", 1, at, None),
    ]
    writer(kit, kit.session.createDataFrame(rows, schema), topic).save()
    found = kit.read(topic, includeHeaders="true").orderBy("partition").collect()
    assert [(row.partition, row.key, row.value, [tuple(header) for header in row.headers]) for row in found] == [
        (0, None, None, []),
        (1, b"", b"", []),
        (2, b"k", b"v", [("h", b"1"), ("n", None)]),
    ]
    stamps = kit.read(topic).selectExpr("unix_millis(timestamp) as ms").distinct().collect()
    assert [row.ms for row in stamps] == [int(at.timestamp() * 1000)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_understood_by_another_client(kit, codec):
    topic = kit.topic()
    frame = kit.session.range(2000).selectExpr("cast(id as string) as key", "repeat(cast(id as string), 9) as value")
    writer(kit, frame, topic, kafka__compression__type=codec, kafka__batch__size=20_000).save()
    consumer = Consumer({"bootstrap.servers": kit.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = []
    while len(found) < 2000:
        found += [(message.key(), message.value()) for message in consumer.consume(500, 30)]
    consumer.close()
    assert sorted(found) == sorted((b"%d" % n, b"%d" % n * 9) for n in range(2000))


def test_requests_are_as_small_as_they_were_asked_to_be(kit):
    topic = kit.topic(partitions=4)
    frame = kit.session.range(2000).selectExpr("cast(id % 4 as int) as partition", "lpad(id, 100, '0') as value")
    writer(kit, frame, topic, kafka__max__request__size=5_000).save()
    assert sorted(int(value) for value in kit.values(topic)) == list(range(2000))
    with pytest.raises(Exception, match=r"kafka\.max\.request\.size: a row of 1\d\d bytes is larger than 90"):
        writer(kit, frame, topic, kafka__max__request__size=90).save()


def test_keys_go_where_other_clients_put_them(kit):
    theirs, ours = kit.topic(partitions=5), kit.topic(partitions=5)
    keys = [b"key-%d" % number for number in range(200)]
    kit.produce(theirs, [{"key": key, "value": b"v"} for key in keys], partitioner="murmur2_random")
    frame = kit.session.createDataFrame([(key, b"v") for key in keys], "key binary, value binary")
    writer(kit, frame, ours).save()

    def placed(topic):
        return {bytes(row.key): row.partition for row in kit.read(topic).collect()}

    assert placed(ours) == placed(theirs)


def test_a_column_routes_rows_to_topics(kit):
    first, second = kit.topic(), kit.topic(partitions=2)
    frame = kit.session.range(100).selectExpr(
        f"if(id % 4 = 0, '{first}', '{second}') as topic", "cast(id as string) as value"
    )
    writer(kit, frame).save()
    assert sorted(int(value) for value in kit.values(first)) == list(range(0, 100, 4))
    assert sorted(int(value) for value in kit.values(second)) == [n for n in range(100) if n % 4]


def test_rows_without_keys_spread(kit):
    topic = kit.topic(partitions=4)
    writer(kit, kit.session.range(40_000).selectExpr("cast(id as string) as value"), topic).save()
    counts = kit.read(topic).groupBy("partition").count().collect()
    assert len(counts) == 4
    assert sum(row["count"] for row in counts) == 40_000


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("id as value", {}, "value: bigint cannot be written"),
        ("cast(id as string) as val", {}, "did you mean 'value'"),
        ("cast(id as string) as key", {}, "no column 'value'"),
        ("cast(id as string) as value, 9 as partition", {}, "partition 9"),
        ("cast(id as string) as value", {"topicc": "x"}, "did you mean 'topic'"),
        ("cast(id as string) as value", {"deliveryGuarantee": "twice"}, "exactly-once"),
        ("cast(id as string) as value", {"kafka__compression__type": "rar"}, "zstd"),
        (
            "cast(id as string) as value",
            {"transactionTimeoutMs": "999999999", "deliveryGuarantee": "exactly-once"},
            "TIMEOUT",
        ),
    ],
)
def test_what_cannot_be_written_is_explained(kit, select, options, message):
    topic = kit.topic()
    with pytest.raises(Exception, match=message):
        writer(
            kit, kit.session.range(3).selectExpr(*[part.strip() for part in select.split(", ")]), topic, **options
        ).save()


def test_topics_are_not_overwritten_and_must_exist(kit):
    frame = kit.session.range(1).selectExpr("cast(id as string) as value")
    with pytest.raises(Exception, match="use append"):
        writer(kit, frame, kit.topic()).mode("overwrite").save()
    with pytest.raises(Exception, match="Give the option 'topic'"):
        writer(kit, frame).save()


def test_a_batch_in_transactions_is_seen_whole(kit):
    topic = kit.topic(partitions=2)
    frame = kit.session.range(0, 5000, 1, 4).selectExpr("cast(id as string) as value")
    writer(kit, frame, topic, deliveryGuarantee="exactly-once").save()
    committed = kit.values(topic, kafka__isolation__level="read_committed")
    assert sorted(int(value) for value in committed) == list(range(5000))


def start_copy(kit, source, target, checkpoint, guarantee, **trigger):
    stream = kit.stream(source, startingOffsets="earliest", maxOffsetsPerTrigger=400).select("key", "value")
    return kit.started(
        stream.writeStream.format("headrace")
        .option("kafka.bootstrap.servers", kit.bootstrap)
        .option("topic", target)
        .option("deliveryGuarantee", guarantee)
        .option("checkpointLocation", str(checkpoint))
        .trigger(**trigger)
    )


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_stream_from_topic_to_topic(kit, checkpoint, guarantee):
    source, target = kit.topic(partitions=2), kit.topic(partitions=3)
    kit.numbers(source, range(1000))
    query = start_copy(kit, source, target, checkpoint, guarantee, availableNow=True)
    assert query.awaitTermination(BATCHES_S)
    assert not query.exception()
    copied = kit.values(target, kafka__isolation__level="read_committed")
    assert sorted(int(value) for value in copied) == list(range(1000))


def test_batch_of_restored_checkpoint_is_refused(kit, checkpoint, tmp_path):
    """One that was planned again under the number of a batch which the sink has, with other offsets."""
    source, target, backup = kit.topic(), kit.topic(), tmp_path / "backup"
    for numbers in (range(100), range(100, 200)):
        kit.numbers(source, numbers)
        query = start_copy(kit, source, target, checkpoint, "exactly-once", availableNow=True)
        assert query.awaitTermination(BATCHES_S)
        if not backup.exists():
            shutil.copytree(checkpoint, backup)
    kit.numbers(source, range(200, 300))
    query = start_copy(kit, source, target, backup, "exactly-once", availableNow=True)
    with pytest.raises(
        Exception, match=r'has batch 1 of this query up to \[\{".*":\{"0":200\}\}\].*plans batch 1 up to'
    ):
        query.awaitTermination(BATCHES_S)
    copied = kit.values(target, kafka__isolation__level="read_committed")
    assert sorted(int(value) for value in copied) == list(range(200))
    query = start_copy(kit, source, target, checkpoint, "exactly-once", availableNow=True)
    assert query.awaitTermination(BATCHES_S)
    copied = kit.values(target, kafka__isolation__level="read_committed")
    assert sorted(int(value) for value in copied) == list(range(300)), "with the newer checkpoint nothing is missing"


def test_a_batch_that_comes_again_is_written_once(kit, checkpoint):
    """As after a driver that died between the sink's commit and its own: the batch is planned again, same number."""
    source, target = kit.topic(), kit.topic()
    kit.numbers(source, range(300))
    assert start_copy(kit, source, target, checkpoint, "exactly-once", availableNow=True).awaitTermination(BATCHES_S)
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    query = start_copy(kit, source, target, checkpoint, "exactly-once", availableNow=True)
    assert query.awaitTermination(BATCHES_S)
    copied = kit.values(target, kafka__isolation__level="read_committed")
    assert sorted(int(value) for value in copied) == list(range(300))
    assert json.loads(query.lastProgress.json)["batchId"] >= last if query.lastProgress else True
