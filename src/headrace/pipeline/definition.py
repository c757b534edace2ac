"""Pipeline definitions as values: sources, transform, sink, and the handling of records that do not decode.

Pure; performs no I/O and does not import Spark. `parser.py` and `python_api.py` create these values, and
`spark/pipeline/query.py` builds queries from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# A part of a pipeline file as a path of keys from the outermost: ("sources", "orders", "schema").
FieldPath = tuple[str, ...]
SQL: FieldPath = ("sql",)
FUNCTION: FieldPath = ("def",)  # the function of a Python file


class Format(StrEnum):
    """Encoding of record values."""

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
# Spark's first batch takes some seconds, and many on a busy host. A short trigger interval must not cause a false
# alarm.
STALLED_AFTER_MS_MIN = 60_000


class OutputMode(StrEnum):
    APPEND = "append"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How record values are decoded to columns."""

    format: Format = Format.RAW
    schema: str | None = None  # Spark DDL for JSON and CSV, JSON for Avro, the text of a .proto for Protobuf
    message: str | None = None  # the message type of a .proto
    registry: str | None = None  # URL of the schema registry for Confluent's wire format
    schema_file: str | None = None  # the file of the schema, unless it is in the pipeline's own file
    # See formats/decoding_rules.py; also the subject of a registry.
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Event time: the column, and how late a row may be before windows and joins drop it."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One or several topics, or a lake table, under the name that the transform uses."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    table: str | None = None  # path of a Delta table or Parquet directory: read whole, for lookups
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
    format: Format = Format.JSON  # JSON of all columns, or the column `value` unchanged (raw, text)
    key: str | None = None  # a SQL expression over the transform's columns
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    name: str
    sources: tuple[Source, ...]
    sink: Sink
    sql: str | None = None
    function: Any = None  # takes DataFrames by the names of the sources and returns a DataFrame; instead of `sql`
    dead_letters: str | None = None  # a topic; without one a record that does not decode stops the pipeline
    # Where `retry-dead` sends dead-letter records; read beside the sources by this pipeline only.
    retry_topic: str | None = None
    trigger: str = "1 second"
    output_mode: OutputMode = OutputMode.APPEND
    stalled_after_triggers: int = 30  # trigger intervals without progress that are a stall
    spark: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    lines: Mapping[FieldPath, int] = field(default_factory=dict)  # first line of each part of the file

    def line_at(self, place: FieldPath) -> int:
        return line_at(self.lines, place)

    @property
    def streams(self) -> tuple[Source, ...]:
        return tuple(source for source in self.sources if source.is_stream)

    @property
    def stalled_after_ms(self) -> int:
        """Time without progress after which the pipeline is stalled. The minimum for a pipeline without a trigger
        interval.
        """
        number, _, unit = self.trigger.partition(" ")
        trigger_ms = int(number) * UNIT_MS[unit.rstrip("s")] if number.isdigit() else 0
        return max(self.stalled_after_triggers * trigger_ms, STALLED_AFTER_MS_MIN)

    @property
    def group(self) -> str:
        """The consumer group to which offsets are committed, so that Kafka tools show the lag."""
        return f"headrace-pipeline-{self.name}"


def line_at(lines: Mapping[FieldPath, int], place: FieldPath) -> int:
    """Returns the line of a part of the file, or of the nearest enclosing part; 0 if unknown."""
    while place and place not in lines:
        place = place[:-1]
    return lines.get(place, 0)
