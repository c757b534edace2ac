"""What a pipeline is, as values: sources, a transform, a sink, and what becomes of records that do not fit.

Nothing here reads a file or knows Spark. `parser.py` and `python_api.py` make these values, `spark/pipeline/query.py`
turns them into a query.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# A part of a pipeline file, by its keys from the outermost inwards: ("sources", "orders", "schema").
FieldPath = tuple[str, ...]
SQL: FieldPath = ("sql",)
FUNCTION: FieldPath = ("def",)  # of a Python file


class Format(StrEnum):
    """What the bytes of a record's value are."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CSV = "csv"
    TEXT = "text"
    RAW = "raw"


class SinkKind(StrEnum):
    TOPIC = "topic"
    DELTA = "delta"
    ICEBERG = "iceberg"
    PARQUET = "parquet"
    CONSOLE = "console"


UNIT_MS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
# Spark takes some seconds for its first batch, and many on a busy machine: a short trigger is no reason for an alarm.
STALLED_AFTER_MS_MIN = 60_000


class OutputMode(StrEnum):
    APPEND = "append"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the value of a record becomes columns."""

    format: Format = Format.RAW
    schema: str | None = None  # Spark DDL for JSON and CSV, JSON for Avro, the text of a .proto for Protobuf
    message: str | None = None  # the message of a .proto
    registry: str | None = None  # where the schema ids of Confluent's wire format are looked up
    schema_file: str | None = None  # where the schema was read from, if that is not the pipeline's own file
    options: Mapping[str, str] = field(default_factory=dict)  # see values/rules.py; and the subject of a registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Event time: the column, and how late a row may be before it is left out of windows and joins."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A topic (or several, or a lake table), by the name under which the transform knows it."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    table: str | None = None  # a path of a Delta table or Parquet folder: read whole, for lookups
    decoding: Decoding = field(default_factory=Decoding)
    watermark: Watermark | None = None
    rejects: Mapping[str, str] = field(default_factory=dict)  # reason → condition on the decoded row
    starting: str = "earliest"
    options: Mapping[str, str] = field(default_factory=dict)  # of format("headrace")

    @property
    def is_stream(self) -> bool:
        return self.table is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    kind: SinkKind
    target: str = ""  # a topic or a path
    format: Format = Format.JSON  # of a record's value: JSON of all columns, or the column `value` as it is (raw, text)
    key: str | None = None  # a SQL expression over the transform's columns
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    name: str
    sources: tuple[Source, ...]
    sink: Sink
    sql: str | None = None
    function: Any = None  # from DataFrames, by the names of the sources, to a DataFrame; instead of `sql`
    dead_letters: str | None = None  # a topic; without one a record that does not fit stops the pipeline
    retry_topic: str | None = None  # where `retry-dead` sends letters; read beside the sources, by this pipeline alone
    trigger: str = "1 second"
    output_mode: OutputMode = OutputMode.APPEND
    stalled_after_triggers: int = 30  # no progress for so long is an alert
    spark: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    lines: Mapping[FieldPath, int] = field(default_factory=dict)  # of the file: where the text of each part begins

    def line_at(self, place: FieldPath) -> int:
        return line_at(self.lines, place)

    @property
    def streams(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if source.is_stream)

    @property
    def stalled_after_ms(self) -> int:
        """No progress for so long is an alert. A pipeline that reads once has no triggers to count."""
        number, _, unit = self.trigger.partition(" ")
        trigger_ms = int(number) * UNIT_MS[unit.rstrip("s")] if number.isdigit() else 0
        return max(self.stalled_after_triggers * trigger_ms, STALLED_AFTER_MS_MIN)

    @property
    def group(self) -> str:
        """The consumer group to which positions are committed, so that every Kafka tool sees the lag."""
        return f"headrace-pipeline-{self.name}"


def line_at(lines: Mapping[FieldPath, int], place: FieldPath) -> int:
    """Of a part of the file, or of what stands around it; 0 if nobody knows."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 0)
