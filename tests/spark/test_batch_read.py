"""Batch reads through `format("headrace")`: every record, once, as it was written."""

import json
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from pyspark.sql.functions import col

from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.offsets import LATEST, list_offsets
from headrace.model.ids import TopicPartition


def test_every_column_is_as_it_was_written(kit):
    topic = kit.topic(partitions=2)
    at_ms = 1_700_000_000_123
    kit.produce(
        topic,
        [
            {"value": b"v0", "key": b"k0", "timestamp": at_ms, "headers": [("a", b"1"), ("b", None), ("a", b"")]},
            {"value": None, "key": b"k1", "timestamp": at_ms + 1},
            {"value": b"", "key": None, "timestamp": at_ms + 2},
        ],
        partition=1,
    )
    rows = kit.read(topic, includeHeaders="true").orderBy("offset").collect()
    assert [(row.key, row.value, row.topic, row.partition, row.offset, row.timestampType) for row in rows] == [
        (b"k0", b"v0", topic, 1, 0, 0),
        (b"k1", None, topic, 1, 1, 0),
        (None, b"", topic, 1, 2, 0),
    ]
    assert [[tuple(header) for header in row.headers] for row in rows] == [
        [("a", b"1"), ("b", None), ("a", b"")],
        [],
        [],
    ]
    stamped = kit.read(topic).selectExpr("unix_millis(timestamp) as ms").orderBy("ms").collect()
    assert [row.ms for row in stamped] == [at_ms, at_ms + 1, at_ms + 2]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(kit, codec):
    topic = kit.topic()
    values = [b"%d " % number * (number % 50) for number in range(3000)]
    kit.produce(topic, values, **{"compression.type": codec})
    assert kit.values(topic) == values


def test_append_time_and_large_values(kit):
    topic = kit.topic(message_timestamp_type="LogAppendTime", max_message_bytes="2000000")
    kit.produce(topic, [bytes([number]) * 1_000_000 for number in range(5)], **{"message.max.bytes": 2_000_000})
    rows = kit.read(topic).collect()
    assert {row.timestampType for row in rows} == {1}
    assert sorted(bytes(row.value)[:1] + bytes(row.value)[-1:] for row in rows) == [bytes([n, n]) for n in range(5)]


def test_a_schema_of_ones_own_prunes_and_a_wrong_one_is_explained(kit):
    topic = kit.topic()
    kit.produce(topic, [b"x"])
    frame = kit.read(topic, schema="value binary")
    assert frame.columns == ["value"]
    assert frame.collect()[0].value == b"x"
    assert kit.read(topic, schema="offset bigint, value binary").collect()[0] == (0, b"x")
    with pytest.raises(Exception, match="did you mean 'value'"):
        kit.read(topic, schema="valu binary").collect()
    with pytest.raises(Exception, match="value is binary, not string"):
        kit.read(topic, schema="value string").collect()


def test_ranges_by_offset_and_by_time(kit):
    topic = kit.topic(partitions=2)
    for partition in (0, 1):
        kit.produce(
            topic,
            [{"value": b"%d" % n, "timestamp": 1_700_000_000_000 + 1000 * n} for n in range(10)],
            partition=partition,
        )
    start, end = json.dumps({topic: {"0": 3, "1": -2}}), json.dumps({topic: {"0": 5, "1": -1}})
    rows = kit.read(topic, startingOffsets=start, endingOffsets=end).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(0, 3), (0, 4)] + [(1, n) for n in range(10)]
    between = {"startingTimestamp": 1_700_000_004_500, "endingTimestamp": 1_700_000_007_000}
    assert {row.offset for row in kit.read(topic, **between).collect()} == {5, 6}
    by_time = json.dumps({topic: {"0": 1_700_000_008_000, "1": 1_800_000_000_000}})
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy"):
        kit.read(topic, startingOffsetsByTimestamp=by_time).collect()
    rows = kit.read(topic, startingOffsetsByTimestamp=by_time, startingOffsetsByTimestampStrategy="latest").collect()
    assert sorted((row.partition, row.offset) for row in rows) == [(0, 8), (0, 9)]
    with pytest.raises(Exception, match="leaves out"):
        kit.read(topic, startingOffsets=json.dumps({topic: {"0": 3}})).collect()
    with pytest.raises(Exception, match="use -1 for its end"):
        kit.read(topic, endingOffsets=json.dumps({topic: {"0": 3, "1": 11}})).collect()
    with pytest.raises(Exception, match="starts at 11 and ends at 10, before that"):
        kit.read(topic, startingOffsets=json.dumps({topic: {"0": 0, "1": 11}})).collect()


def test_patterns_assignments_and_empty_topics(kit):
    stem = kit.topic()
    first, second = kit.topic(name=f"{stem}-x1"), kit.topic(partitions=3, name=f"{stem}-x2")
    kit.numbers(first, [1])
    kit.numbers(second, [2, 3], partition=2)
    assert sorted(kit.values(None, subscribePattern=f"{stem}-x[0-9]")) == [b"1", b"2", b"3"]
    assert kit.values(None, subscribePattern=f"{stem[2:]}-x1") == [b"1"], (
        "as in the connector, a part of the name will do"
    )
    assert kit.values(None, assign=json.dumps({second: [2]})) == [b"2", b"3"]
    assert kit.values(None, assign=json.dumps({second: [0, 1]})) == []
    assert kit.values(stem) == []
    assert kit.values(None, subscribePattern="nothing-like-this") == []
    with pytest.raises(Exception, match="no such topic or partition"):
        kit.values(None, assign=json.dumps({first: [5]}))


def test_many_tasks_read_one_partition(kit):
    topic = kit.topic()
    kit.numbers(topic, range(1000))
    for options, tasks in (({"minPartitions": 4}, 4), ({"maxRecordsPerPartition": 300}, 4), ({}, 1)):
        frame = kit.read(topic, **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert sorted(int(row.value) for row in frame.collect()) == list(range(1000))


def test_filters_narrow_what_is_read(kit):
    topic = kit.topic(partitions=3)
    for partition in range(3):
        kit.produce(
            topic,
            [{"value": b"%d" % n, "timestamp": 1_700_000_000_000 + 1000 * n} for n in range(100)],
            partition=partition,
        )

    def frame():
        return kit.read(topic, maxRecordsPerPartition=10, pushFilters="true")

    assert frame().rdd.getNumPartitions() == 30
    some = frame().filter("partition in (0, 2) and offset >= 20 and offset < 35")
    assert (some.rdd.getNumPartitions(), some.count()) == (4, 30)
    one = frame().filter("partition = 1 and offset = 7")
    assert (one.rdd.getNumPartitions(), one.count()) == (1, 1)
    when = datetime.fromtimestamp(1_700_000_089, UTC)
    late = frame().filter(col("timestamp") > when)
    assert (late.rdd.getNumPartitions(), late.count()) == (6, 30)
    assert frame().filter("value = 'x' or partition = 1").count() == 100
    assert frame().filter(f"topic = '{topic}x'").count() == 0


def test_filters_go_together_with_offsets_and_times_that_were_given(kit):
    """They name every partition, and the filter leaves one of them."""
    topic = kit.topic(partitions=2)
    for partition in range(2):
        kit.produce(
            topic,
            [{"value": b"%d" % n, "timestamp": 1_700_000_000_000 + 1000 * n} for n in range(100)],
            partition=partition,
        )
    offsets = {"startingOffsets": {"0": 10, "1": -2}, "endingOffsets": {"0": 30, "1": 90}}
    times = {
        "startingOffsetsByTimestamp": {"0": 1_700_000_020_000, "1": 1_700_000_040_000},
        "endingOffsetsByTimestamp": {"0": 1_700_000_050_000, "1": 1_700_000_060_000},
    }
    for given, expected in ((offsets, range(90)), (times, range(40, 60))):
        options = {name: json.dumps({topic: value}) for name, value in given.items()}
        some = kit.read(topic, **options, maxRecordsPerPartition=10, pushFilters="true").filter("partition = 1")
        assert some.rdd.getNumPartitions() == len(expected) // 10
        assert sorted(row.offset for row in some.collect()) == list(expected)
    left_out = kit.read(topic, startingOffsets=json.dumps({topic: {"1": 5}}), pushFilters="true")
    with pytest.raises(Exception, match="leaves out"):
        left_out.filter("partition = 1").collect()


def test_filters_are_not_pushed_unless_asked_for(kit):
    """Spark 4.3 would give the narrowed plan to the second query as well."""
    topic = kit.topic()
    kit.numbers(topic, range(100))
    frame = kit.read(topic)
    assert (frame.filter("offset < 10").count(), frame.count()) == (10, 100)


def test_committed_and_aborted_transactions(kit):
    topic = kit.topic()
    producer = Producer({"bootstrap.servers": kit.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    expected = []
    for number in range(12):
        producer.begin_transaction()
        for part in range(50):
            producer.produce(topic, b"%d" % (number * 50 + part))
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            expected += range(number * 50, number * 50 + 50)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    committed = kit.values(topic, kafka__isolation__level="read_committed")
    assert [int(value) for value in committed] == expected
    assert len(kit.values(topic, kafka__isolation__level="read_uncommitted")) == 601
    producer.abort_transaction(30)
    assert kit.values(topic, kafka__isolation__level="read_committed", minPartitions=5) == committed


def test_wrong_options_and_nobody_there(kit):
    topic = kit.topic()
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        kit.read(topic, startingOffset="earliest").collect()
    with pytest.raises(Exception, match=r"no such topic or partition.*create it"):
        kit.read("not-there").collect()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1.*gave up after 1 s.*Connection refused"):
        kit.read(topic, kafka__bootstrap__servers="127.0.0.1:1", kafka__default__api__timeout__ms=1000).collect()


def test_offsets_that_retention_removed(kit):
    topic = kit.topic()
    kit.numbers(topic, range(100))
    delete_records(kit, topic, 40)
    from_start = json.dumps({topic: {"0": 10}})
    with pytest.raises(Exception, match=r"offsets 10 to 39 were deleted.*failOnDataLoss"):
        kit.values(topic, startingOffsets=from_start)
    rows = kit.values(topic, startingOffsets=from_start, failOnDataLoss="false")
    assert [int(value) for value in rows] == list(range(40, 100))
    assert len(kit.values(topic)) == 60


def delete_records(kit, topic: str, before: int) -> None:
    from confluent_kafka import TopicPartition as Partition

    (future,) = kit.admin.delete_records([Partition(topic, 0, before)]).values()
    future.result(30)
    cluster = Cluster(ClientConfig(bootstrap=kit.bootstrap))
    assert list_offsets(cluster, {TopicPartition(topic, 0): LATEST}, read_committed=False)
    cluster.close()
