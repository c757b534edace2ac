"""What Spark tests say often: make a topic, fill it, read it, run a stream until it has caught up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_S = 60.0
STARTS_MAX = 5


def started(writer: Any, note: Callable[[Any], None] = lambda query: None) -> Any:
    """A query that has begun to read, or has ended; `note` is told of every one that is tried.

    Spark gives the Python process of a streaming source ten seconds to start, which it cannot be told to change,
    and on a machine full of tests that is sometimes too short: then it is started again, on the same checkpoint.
    """
    for _ in range(STARTS_MAX):
        query = writer.start()
        note(query)
        while query.isActive and not query.recentProgress and not query.status["message"].startswith("Waiting"):
            time.sleep(0.1)
        failure = None if query.isActive else query.exception()
        if failure is None or "failed to connect back" not in str(failure):
            return query
    raise AssertionError(f"Spark did not start a streaming source in {STARTS_MAX} tries")


class SparkKit:
    def __init__(self, session: Any, bootstrap: str, **client: str) -> None:
        """`client`: what confluent-kafka's clients need beside the address."""
        self.session, self.bootstrap = session, bootstrap
        self._client = {"bootstrap.servers": bootstrap} | client
        self.admin = AdminClient(self._client)
        self._queries: list[Any] = []

    def topic(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        name = name or f"t-{uuid4().hex[:12]}"
        # Tests write records with times of long ago, which the default retention would remove.
        config = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(WAIT_S)
        return name

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(WAIT_S)

    def produce(self, topic: str, values, *, partition: int = -1, **settings: Any) -> None:
        """Values as bytes, or as dicts of `Producer.produce`'s arguments."""
        producer = Producer({**self._client, "linger.ms": 5, **settings})
        for value in values:
            record = value if isinstance(value, dict) else {"value": value}
            producer.produce(topic, **({"partition": partition} | record if partition >= 0 else record))
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0

    def numbers(self, topic: str, numbers, **where: Any) -> None:
        self.produce(topic, (b"%d" % number for number in numbers), **where)

    def reader(self, topic: str | None, *, streaming: bool = False, schema: str | None = None, **options: Any) -> Any:
        reader = self.session.readStream if streaming else self.session.read
        if schema:
            reader = reader.schema(schema)
        reader = reader.format("headrace").option("kafka.bootstrap.servers", self.bootstrap)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader

    def read(self, topic: str | None, **options: Any) -> Any:
        return self.reader(topic, **options).load()

    def values(self, topic: str | None, **options: Any) -> list[bytes]:
        rows = self.read(topic, **options).orderBy("topic", "partition", "offset").collect()
        return [None if row.value is None else bytes(row.value) for row in rows]

    def stream(self, topic: str | None, **options: Any) -> Any:
        return self.reader(topic, streaming=True, **options).load()

    def to_memory(self, frame: Any, name: str, checkpoint: Path, **trigger: Any) -> Any:
        """Start a query into a table in memory. With availableNow it is awaited."""
        writer = frame.writeStream.format("parquet").option("path", str(checkpoint.parent / name))
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = self.started(writer.trigger(**trigger) if trigger else writer)
        if trigger.get("availableNow"):
            assert query.awaitTermination(120), "the query does not end"
        return query

    def started(self, writer: Any) -> Any:
        """A query that is stopped with the test."""
        return started(writer, self._queries.append)

    def written(self, folder: Path) -> list[int]:
        """The numbers that a query has written so far."""
        if not (folder / "_spark_metadata").exists():
            return []
        rows = self.session.read.schema("value binary").parquet(str(folder)).collect()
        return sorted(int(row.value) for row in rows)

    def close(self) -> None:
        for query in self._queries:
            query.stop()
