"""Both doors out of Spark: what `format("headrace")` and Spark's own Kafka connector write is the same, row by row."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from tests.interop.spark_doors import (
    BASE_MS,
    DOORS,
    KEPT,
    STREAM_SECONDS_MAX,
    begun,
    fill,
    make_topics,
    new_name,
    options_for,
    read_by,
)
from tests.spark.kit import started

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def source(bootstrap: str) -> str:
    """Of three partitions, with all that a record can be."""
    topic = new_name("source")
    make_topics(bootstrap, NewTopic(topic, 3, 1, config=KEPT))
    records = (
        {
            "value": None if n % 11 == 0 else b"%d-" % n * (n % 40),
            "key": None if n % 5 == 0 else b"key-%d" % n,
            "partition": n % 3,
            "timestamp": BASE_MS + n,
            "headers": [("h", b"%d" % n), ("none", None), ("h", b"again")] if n % 2 == 0 else [],
        }
        for n in range(600)
    )
    fill(bootstrap, topic, records)
    return topic


def _targets(bootstrap: str, partitions: int) -> dict[str, str]:
    """A topic for each door, empty."""
    names = {door: new_name(f"by-{door}") for door in DOORS}
    make_topics(bootstrap, *(NewTopic(name, partitions, 1) for name in names.values()))
    return names


def _contents(spark: Any, bootstrap: str, targets: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What each door has written, as both of them read it; all but the topic's name and the time of writing."""
    found = {}
    for writer, topic in targets.items():
        options = options_for(bootstrap, topic, {"includeHeaders": "true"})
        first, second = (read_by(reader, spark, options) for reader in DOORS)
        assert first == second
        found[writer] = [{name: row[name] for name in row if name not in ("topic", "timestamp")} for row in first]
    return found


def test_rows_by_key_or_by_none(spark, bootstrap):
    targets = _targets(bootstrap, 5)
    frame = spark.range(2000).selectExpr(
        "if(id % 7 = 0, null, repeat(cast(id as string), int(id % 40) + 1)) as key",
        "if(id % 13 = 0, null, repeat(cast(id as string), 3)) as value",
        "if(id % 3 = 0, array(named_struct('key', 'h', 'value', cast('x' as binary))), array()) as headers",
    )
    for door, topic in targets.items():
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "includeHeaders": "true"}
        frame.write.format(door).options(**options).mode("append").save()
    found = {door: _by_content(rows) for door, rows in _contents(spark, bootstrap, targets).items()}
    assert len(found["kafka"]) == 2000
    assert found["headrace"] == found["kafka"]


def _by_content(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Tasks write at once, so offsets are a matter of chance; so is where a row without a key goes."""
    found = [
        (row["key"] or b"", row["value"] or b"", row["headers"], row["partition"] if row["key"] else -1) for row in rows
    ]
    return sorted(found)


def test_columns_say_where_each_row_goes(spark, bootstrap):
    """Topic and partition by column. A time of its own is not compared: the connector has no such column."""
    targets, others = _targets(bootstrap, 4), _targets(bootstrap, 4)
    for door in DOORS:
        frame = spark.range(600).selectExpr(
            f"if(id % 2 = 0, '{targets[door]}', '{others[door]}') as topic",
            "cast(id % 7 % 4 as int) as partition",
            "cast(cast(id as string) as binary) as key",
            "cast(id as string) as value",
            "array(named_struct('key', 'a', 'value', encode(string(id), 'utf-8')),"
            " named_struct('key', 'b', 'value', null)) as headers",
        )
        frame.coalesce(1).write.format(door).option("kafka.bootstrap.servers", bootstrap).mode("append").save()
    for written in (targets, others):
        found = _contents(spark, bootstrap, written)
        assert len(found["kafka"]) == 300
        assert found["headrace"] == found["kafka"], "offset by offset: one task wrote them in its order"


def test_streams_that_are_written(spark, bootstrap, source: str, tmp_path: Path):
    targets = _targets(bootstrap, 3)
    read = options_for(bootstrap, source, {"startingOffsets": "earliest", "includeHeaders": "true"})
    queries = []
    for door, topic in targets.items():
        stream = spark.readStream.format(door).options(**read, maxOffsetsPerTrigger="250").load()
        rows = stream.selectExpr("key", "value", "headers", "partition", f"'{topic}' as topic")
        writer = rows.writeStream.format(door).option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("checkpointLocation", str(tmp_path / door)).trigger(availableNow=True)
        queries.append(begun(door, writer))
    for query in queries:
        assert query.awaitTermination(STREAM_SECONDS_MAX)
        assert query.exception() is None
    found = _contents(spark, bootstrap, targets)
    assert len(found["kafka"]) == 600
    assert found["headrace"] == found["kafka"]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_stream_is_copied_with_either_guarantee(spark, bootstrap, source: str, tmp_path: Path, guarantee: str):
    target = new_name("copy")
    make_topics(bootstrap, NewTopic(target, 2, 1))
    read = options_for(bootstrap, source, {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"})
    query = started(
        spark.readStream.format("headrace")
        .options(**read)
        .load()
        .selectExpr("key", "concat(partition, ':', offset) as value")
        .writeStream.format("headrace")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": target, "deliveryGuarantee": guarantee})
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert query.awaitTermination(STREAM_SECONDS_MAX)
    assert query.exception() is None
    rows = read_by("kafka", spark, options_for(bootstrap, target, {"kafka.isolation.level": "read_committed"}))
    wanted = [f"{partition}:{offset}" for partition in range(3) for offset in range(200)]
    assert sorted(row["value"].decode() for row in rows) == sorted(wanted)
