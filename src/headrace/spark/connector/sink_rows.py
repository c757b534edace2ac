"""Converts rows of a DataFrame to record batches: selects topic and partition of every row. Performs no I/O.

The columns are those of Spark's Kafka sink, and `timestamp`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition
from headrace.records.arrow.arrays import is_valid, numbers_of
from headrace.records.arrow.encode import RecordColumns
from headrace.records.arrow.partitioner import hash_column, partitions_of
from headrace.spark.connector.schema import HEADER

WRITABLE: Mapping[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (ArrayType(HEADER),),
    "timestamp": (TimestampType(),),
}

# Consecutive rows without a key go to one partition in runs of this length, which fills batches and spreads load.
UNKEYED_RUN = 2000

# Spark passes 10,000 rows at a time, which a dozen partitions split into batches of 100 kB where brokers accept 1 MB.
# Rows of this many bytes are written together; a task needs four times the memory while it does so.
GATHERED_BYTES = 8 * 1024 * 1024


def check_writable(schema: StructType, topic: str | None) -> None:
    names = schema.fieldNames()
    for field in schema.fields:
        allowed = WRITABLE.get(field.name)
        if allowed is None:
            near = get_close_matches(field.name, WRITABLE, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(WRITABLE)}"
            raise InvalidConfig(f"a record has no column {field.name!r}; {hint} Select the columns to write.")
        if not any(_same_type(field.dataType, one) for one in allowed):
            right = " or ".join(one.simpleString() for one in allowed)
            raise InvalidConfig(f"{field.name}: {field.dataType.simpleString()} cannot be written; make it {right}")
    if "value" not in names:
        raise InvalidConfig("there is no column 'value' to write")
    if "topic" not in names and topic is None:
        raise InvalidConfig("where to? Give the option 'topic', or a column 'topic'")


def _same_type(one: DataType, other: DataType) -> bool:
    """Compares types without nullability, which Spark infers for an array of structs from how it was created."""
    return one.simpleString() == other.simpleString()


def gathered(rows: Iterable[Any], bytes_max: int = GATHERED_BYTES) -> Iterator[Any]:
    """Yields the same rows in fewer RecordBatches, none of them empty, of up to this many bytes; a larger one stays
    whole.
    """
    waiting: list[Any] = []
    room = bytes_max
    for batch in rows:
        if not batch.num_rows:
            continue
        if waiting and batch.nbytes > room:
            yield pa.concat_batches(waiting)
            waiting, room = [], bytes_max
        waiting.append(batch)
        room -= batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting)


class Routed(NamedTuple):
    partition: TopicPartition
    columns: RecordColumns


class Router:
    """Splits batches of rows by partition. Lives as long as its task."""

    def __init__(self, topic: str | None, partition_count: Callable[[str], int], first_partition: int) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._turn = first_partition

    def route(self, rows: Any, now_ms: int) -> Iterator[Routed]:
        """Yields the rows of a RecordBatch grouped by partition, in their order."""
        columns = record_columns(rows, now_ms)
        for topic, of_topic in self._by_topic(rows):
            chosen = self._partitions(topic, rows, columns, of_topic)
            for partition in np.unique(chosen):
                index = of_topic[chosen == partition]
                everything = len(index) == len(columns.values)
                yield Routed(TopicPartition(topic, int(partition)), columns if everything else columns.take(index))

    def _by_topic(self, rows: Any) -> Iterator[tuple[str, Any]]:
        if self._topic is not None:  # the option has precedence over the column, as in the connector
            yield self._topic, np.arange(rows.num_rows)
            return
        topics = rows.column("topic")
        if topics.null_count:
            raise InvalidConfig("a row has no topic: the column 'topic' is null there, and the option is not set")
        encoded = topics.dictionary_encode()
        codes = numbers_of(encoded.indices)
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            yield name, np.flatnonzero(codes == code)

    def _partitions(self, topic: str, rows: Any, columns: RecordColumns, index: Any) -> Any:
        """Returns the partition of each row: from its column, by its key, or in turn for runs of UNKEYED_RUN rows."""
        count = self._partition_count(topic)
        chosen = np.full(len(index), -1, dtype=np.int64)
        if "partition" in rows.schema.names:
            chosen = numbers_of(rows.column("partition"), null=-1).astype(np.int64)[index]
            if len(chosen) and chosen.max() >= count:
                raise InvalidConfig(f"a row is for partition {chosen.max()} of {topic}, which has {count}")
        open_rows = chosen < 0
        if columns.keys is not None and open_rows.any():
            keyed = open_rows & is_valid(columns.keys)[index]
            chosen[keyed] = partitions_of(hash_column(columns.keys), count)[index][keyed]
            open_rows &= ~keyed
        unkeyed = int(open_rows.sum())
        if unkeyed:
            runs = np.arange(unkeyed) // UNKEYED_RUN
            chosen[open_rows] = (self._turn + runs) % count
            self._turn += int(runs[-1]) + 1
        return chosen


def record_columns(rows: Any, now_ms: int) -> RecordColumns:
    names = rows.schema.names

    def column(name: str, kind: Any) -> Any | None:
        return rows.column(name).cast(kind) if name in names else None

    values = column("value", pa.binary())
    stamped = column("timestamp", pa.timestamp("ms", "UTC")) if "timestamp" in names else None
    if stamped is None:
        timestamps = np.full(rows.num_rows, now_ms, dtype=np.int64)
    else:
        timestamps = numbers_of(stamped.view(pa.int64()), null=now_ms)
    headers = rows.column("headers") if "headers" in names else None
    return RecordColumns(timestamps, column("key", pa.binary()), values, headers)


def chunks(columns: RecordColumns, bytes_max: int, row_bytes_max: int | None = None) -> Iterator[RecordColumns]:
    """Splits columns into batches of at most this many bytes; a larger row is a batch of its own."""
    sizes = columns.sizes()
    if row_bytes_max is not None and len(sizes) and sizes.max() > row_bytes_max:
        raise InvalidConfig(f"kafka.max.request.size: a row of {sizes.max():,} bytes is larger than {row_bytes_max:,}")
    ends = np.cumsum(sizes)
    start, count = 0, len(columns.values)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + bytes_max, side="right")), start + 1)
        yield columns.slice(start, end)
        start = end
