"""Temporary views for the topics and tables of a query.

A topic is its archive followed by its later records (`archive/history.py`). Spark reads the archive's files itself,
so unused columns are not read and filters skip row groups.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace.archive.decode import RAW, ValueSchema, archive_schema, with_decoded
from headrace.archive.history import Cut, cut
from headrace.client.reader.offset_resolver import OffsetResolver
from headrace.client.reader.offsets import Positions, plain
from headrace.client.reader.read_options import Subscription
from headrace.client.sync.client import Cluster, TopicView
from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def make_views(spark: "SparkSession", cluster: Cluster, query: str, tables: Mapping[str, str]) -> list[str]:
    """Creates views for every table and for every topic that occurs in the query. Returns the names of all topics."""
    for name, place in tables.items():
        table_frame(spark, place).createOrReplaceTempView(f"`{name}`")
    topics = cluster.patiently("listing topics", lambda: cluster.topics(None))
    for name in mentioned(query, [name for name in topics if name not in tables]):
        topic_frame(spark, cluster, topics[name]).createOrReplaceTempView(f"`{name}`")
    return sorted(name for name, topic in topics.items() if not topic.is_internal)


def mentioned(query: str, names: Iterable[str]) -> list[str]:
    """Returns the names that occur in the query as words or in backticks. A name too many costs a lookup; one too few
    would fail the query.
    """
    found = [name for name in names if re.search(rf"(?<![\w`-]){re.escape(name)}(?![\w-])|`{re.escape(name)}`", query)]
    for one, other in pairwise(sorted(found, key=str.lower)):
        if one.lower() == other.lower():
            raise InvalidConfig(f"{one} and {other} are one name in SQL; query one of them at a time")
    return sorted(found)


def table_frame(spark: "SparkSession", place: str) -> "DataFrame":
    """Returns a Delta or Iceberg table in its newest version, anything else as Parquet."""
    from headrace.pipeline.definition import Source
    from headrace.spark.pipeline.query import open_table

    return open_table(spark, Source(name="", table=place))


def topic_frame(spark: "SparkSession", cluster: Cluster, topic: TopicView) -> "DataFrame":
    locator = OffsetResolver(cluster, Subscription(topics=(topic.name,)), read_committed=True)
    topics = {topic.name: topic}
    found = cut(cluster, locator, topics, locator.partitions(topics), fail_on_data_loss=True)
    decoding = found.decodings.get(topic.name)
    parts = [*_archived(spark, found, decoding), *_live(spark, cluster, topic.name, found, decoding)]
    if not parts:
        return spark.createDataFrame([], _spark_schema(decoding))
    first, *rest = parts
    for part in rest:
        first = first.unionByName(part)
    return first


def _spark_schema(decoding: ValueSchema | None) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(archive_schema(decoding))


def _archived(spark: "SparkSession", found: Cut, decoding: ValueSchema | None) -> Iterable["DataFrame"]:
    if found.files:
        paths = [file.path for file in found.files]
        yield spark.read.schema(_spark_schema(decoding)).parquet(*paths)


def _live(
    spark: "SparkSession", cluster: Cluster, topic: str, found: Cut, decoding: ValueSchema | None
) -> Iterable["DataFrame"]:
    ends: Positions = {one: max(end, found.starts[one]) for one, end in found.ends.items()}
    if ends == found.starts:
        return
    options = {
        "kafka.bootstrap.servers": cluster.settings.bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "includeHeaders": "true",
        "startingOffsets": json.dumps(plain(found.starts)),
        "endingOffsets": json.dumps(plain(ends)),
    }
    rows = spark.read.format("headrace").options(**options).load().select(*RAW.names)
    if decoding is not None:

        def decode(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield with_decoded(batch, decoding)

        rows = rows.mapInArrow(decode, _spark_schema(decoding))
    yield rows
