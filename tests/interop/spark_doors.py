"""What the tests of both doors into Spark share: topics with something in them, and rows that can be compared."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.kit import started

DOORS = ("headrace", "kafka")
BASE_MS = 1_700_000_000_000
WAIT_S = 60.0
STREAM_SECONDS_MAX = 300
# Records of 2023: a broker's retention would take them away in the middle of a comparison.
KEPT = {"retention.ms": "-1"}

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")


def new_name(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:8]}"


def make_topics(bootstrap: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it must outlive its futures
    for future in admin.create_topics(list(topics)).values():
        future.result(WAIT_S)


def fill(bootstrap: str, topic: str, records: Iterable[dict[str, Any]], **conf: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **conf})
    for record in records:
        producer.produce(topic, **record)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def options_for(bootstrap: str, topic: str, scenario: dict[str, str]) -> dict[str, str]:
    """Those of the scenario, with the topic where it has a `$`; subscribed to unless the scenario says what is read."""
    written = {name: value.replace("$", topic) for name, value in scenario.items()}
    named = {} if any(name in written for name in _SUBSCRIPTIONS) else {"subscribe": topic}
    return {"kafka.bootstrap.servers": bootstrap, **named, **written}


def comparable(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """In the order of the log, and without the one difference that is meant: the connector has null where there are
    no headers, we have an empty list."""
    ordered = sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))
    return [_comparable_row(row.asDict(recursive=True)) for row in ordered]


def _comparable_row(row: dict[str, Any]) -> dict[str, Any]:
    if "headers" in row:
        row["headers"] = [(header["key"], header["value"]) for header in row["headers"] or ()]
    return row


def read_by(door: str, spark: Any, options: dict[str, str]) -> list[dict[str, Any]]:
    return comparable(spark.read.format(door).options(**options).load().collect())


def begun(door: str, writer: Any) -> Any:
    """A query. Only our door has a process of Python that Spark may find too slow to start."""
    return started(writer) if door == "headrace" else writer.start()


class TwoStreams:
    """The same stream by both doors, each with a checkpoint and a folder of its own, that both go on from there."""

    def __init__(self, spark: Any, folder: Path, options: dict[str, str]) -> None:
        self._spark, self._folder, self._options = spark, folder, options
        # The connector's columns are what both are looked at by: one that ours had not would be missed.
        self._schema = self._stream("kafka").schema
        self.batch_rows: dict[str, list[int]] = {}

    def catch_up(self) -> dict[str, list[dict[str, Any]]]:
        """All rows that each has written so far, once both have read what there is. They run side by side."""
        # The connector first: ours is waited for until it has begun.
        queries = {door: self._start(door) for door in reversed(DOORS)}
        for door, query in queries.items():
            assert query.awaitTermination(STREAM_SECONDS_MAX), f"{door} does not end"
            assert query.exception() is None
            told = [batch.numInputRows for batch in query.recentProgress]
            self.batch_rows[door] = [rows for rows in told if rows]
        return {door: self._written(door) for door in DOORS}

    def _stream(self, door: str) -> Any:
        return self._spark.readStream.format(door).options(**self._options).load()

    def _start(self, door: str) -> Any:
        checkpoint = str(self._folder / f"{door}-checkpoint")
        writer = self._stream(door).writeStream.format("parquet").option("checkpointLocation", checkpoint)
        writer = writer.option("path", str(self._folder / door)).trigger(availableNow=True)
        return begun(door, writer)

    def _written(self, door: str) -> list[dict[str, Any]]:
        return comparable(self._spark.read.schema(self._schema).parquet(str(self._folder / door)).collect())
