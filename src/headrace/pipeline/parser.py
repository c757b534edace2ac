"""Parses a YAML file to a Pipeline, or to the list of all its errors:

pipeline: totals
sources:
  orders:
    topic: orders
    format: json
    schema: id bigint, customer string, amount double, at timestamp
    watermark: at 10 seconds
    reject:
      the amount is negative: amount < 0
sql: |
  select window.start as minute, customer, sum(amount) as total
  from orders group by window(at, '1 minute'), customer
sink:
  topic: totals
  key: customer
dead_letters: orders.dead
trigger: 1 second
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from headrace.pipeline.definition import (
    Decoding,
    FieldPath,
    Format,
    OutputMode,
    Pipeline,
    Sink,
    SinkKind,
    Source,
    Watermark,
)
from headrace.pipeline.errors import InvalidPipelineError, Problem
from headrace.pipeline.yaml_nodes import Section, composed, lines_of

# A pipeline's name is part of a group id, of transactional ids, of a directory name and of a metric label.
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
SOURCE_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
INTERVAL = re.compile(r"\s*[0-9]{1,12}\s+(millisecond|second|minute|hour|day)s?\s*")
TRIGGERS_BY_NAME = ("once", "available-now")
SINK_FORMATS = (Format.JSON, Format.TEXT, Format.RAW)
STARTING = ("earliest", "latest")
_EXAMPLES = {
    Format.JSON: "schema: id bigint, name string",
    Format.CSV: "schema: id bigint, name string",
    Format.AVRO: "schema_file: orders.avsc, or registry: http://…",
    Format.PROTOBUF: "schema_file: orders.proto, or registry: http://…",
}
# Limit of a schema file.
SCHEMA_BYTES_MAX = 1024 * 1024


class SchemaFiles:
    """Reads the files named by `schema_file`, relative to the pipeline's directory, or returns their stored texts."""

    def __init__(self, folder: Path, known: Mapping[str, str] | None = None) -> None:
        self._folder, self._known = folder, known
        self.read: dict[str, str] = {}

    def text(self, name: str) -> str:
        """Returns the text of a schema file. Raises OSError or UnicodeDecodeError if it cannot be read, ValueError if
        it is too large.
        """
        if self._known is not None and name in self._known:
            return self._known[name]
        path = self._folder / name
        if path.stat().st_size > SCHEMA_BYTES_MAX:
            raise ValueError(f"{path} has more than {SCHEMA_BYTES_MAX} bytes; that is no schema")
        self.read[name] = path.read_text(encoding="utf-8")
        return self.read[name]


def read_pipeline(path: Path) -> Pipeline:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPipelineError(str(path), [Problem(0, f"cannot be read: {error}")]) from error
    return parse_pipeline(text, str(path), files=SchemaFiles(path.parent))


def parse_pipeline(text: str, file: str = "pipeline.yaml", *, files: SchemaFiles | None = None) -> Pipeline:
    node, problem = composed(text)
    if problem is not None:
        raise InvalidPipelineError(file, [problem])
    if node is None:
        raise InvalidPipelineError(file, [Problem(0, "is empty; `headrace pipeline init` writes one to start from")])
    return parse_nodes(node, file, files=files or SchemaFiles(Path()), lines=lines_of(node))


def parse_nodes(
    node: yaml.Node,
    file: str,
    *,
    files: SchemaFiles,
    lines: Mapping[FieldPath, int],
    function: Callable[..., Any] | None = None,
    mistakes: Sequence[Problem] = (),
) -> Pipeline:
    """Builds a pipeline from YAML nodes. `function` replaces `sql`; `mistakes` contains earlier problems."""
    problems = list(mistakes)
    pipeline = _Reader(problems, files).pipeline(Section(node, problems, "a pipeline"), function)
    if problems:
        raise InvalidPipelineError(file, problems)
    return replace(pipeline, file=file, lines=lines)


class _Reader:
    def __init__(self, problems: list[Problem], files: SchemaFiles) -> None:
        self._problems = problems
        self._files = files

    def pipeline(self, top: Section, function: Callable[..., Any] | None) -> Pipeline:
        name = top.required_text("pipeline")
        if name and not NAME.fullmatch(name):
            top.problem(f"invalid pipeline name {name!r}; use letters, digits, '.', '_' and '-'", key="pipeline")
        sources = self._sources(top)
        sql = top.text("sql") if function is None else None
        if sql is None and function is None:
            sql = self._lone_source(top, sources)
        pipeline = Pipeline(
            name=name,
            sources=sources,
            sink=self._sink(top),
            sql=sql,
            function=function,
            dead_letters=top.text("dead_letters"),
            retry_topic=top.text("retry_topic"),
            trigger=self._trigger(top),
            output_mode=OutputMode(top.choice("output_mode", list(OutputMode), OutputMode.APPEND) or OutputMode.APPEND),
            stalled_after_triggers=top.whole_number("stalled_after_triggers", 30, at_least=1),
            spark=top.mapping("spark"),
        )
        top.finish()
        self._check_together(top, pipeline)
        return pipeline

    @staticmethod
    def _lone_source(top: Section, sources: tuple[Source, ...]) -> str | None:
        """Returns the default query without `sql`: all rows of the only source."""
        if len(sources) == 1:
            return f"select * from {sources[0].name}"
        top.problem("a pipeline with several sources requires `sql`")
        return None

    @staticmethod
    def _check_together(top: Section, pipeline: Pipeline) -> None:
        if pipeline.sources and not pipeline.streams:
            top.problem("at least one source must be a topic", key="sources")
        read = {topic for source in pipeline.sources for topic in source.topics}
        written = pipeline.sink.target if pipeline.sink.kind is SinkKind.TOPIC else None
        if written in read:
            top.problem(
                f"{written} is both a source and the sink: the pipeline would process its own output", key="sink"
            )
        if pipeline.dead_letters in read:
            top.problem(
                f"{pipeline.dead_letters} is a source: its dead letters would be read again", key="dead_letters"
            )
        if pipeline.retry_topic is not None and pipeline.dead_letters is None:
            top.problem("retry_topic requires `dead_letters`", key="retry_topic")
        if pipeline.retry_topic is not None and pipeline.retry_topic in {*read, written, pipeline.dead_letters}:
            top.problem(
                f"retry_topic {pipeline.retry_topic} must differ from sources, sink and `dead_letters`",
                key="retry_topic",
            )

    def _sources(self, top: Section) -> tuple[Source, ...]:
        section = top.section("sources", "sources")
        if section is None:
            top.problem("`sources` is required, with at least one topic")
            return ()
        names = section.names()
        if not names:
            section.problem("`sources` is empty: add at least one topic")
        sources = []
        for name in names:
            if not SOURCE_NAME.fullmatch(name):
                section.problem(f"invalid source name {name!r}; use letters, digits and '_'", key=name)
            one = section.section(name, f"source {name}")
            if one is not None:
                sources.append(self._source(name, one))
        return tuple(sources)

    def _source(self, name: str, one: Section) -> Source:
        topics, pattern, table = one.texts("topic"), one.text("pattern"), one.text("table")
        if sum(bool(way) for way in (topics, pattern, table)) != 1:
            one.problem(f"source {name} needs exactly one of topic, pattern and table")
        source = Source(
            name=name,
            topics=topics,
            pattern=pattern,
            table=table,
            decoding=self._decoding(one),
            watermark=self._watermark(one),
            rejects=one.mapping("reject"),
            starting=one.text("starting", "earliest") or "earliest",
            options=one.mapping("options"),
        )
        if not (source.starting in STARTING or source.starting.lstrip().startswith("{")):
            one.problem("starting must be earliest, latest or offsets as JSON", key="starting")
        one.finish()
        return source

    def _decoding(self, one: Section) -> Decoding:
        format_ = Format(one.choice("format", list(Format), Format.RAW) or Format.RAW)
        schema, registry, message = self._schema(one), one.text("registry"), one.text("message")
        needs_schema = format_ not in (Format.RAW, Format.TEXT) and registry is None
        if needs_schema and schema is None:
            one.problem(f"format {format_} needs a schema, e.g. {_EXAMPLES[format_]}", key="format")
        if format_ in (Format.RAW, Format.TEXT) and schema is not None:
            one.problem(f"format {format_} has no schema", key="schema")
        if format_ is Format.PROTOBUF and message is None and registry is None:
            one.problem("format protobuf needs `message`: which message of the .proto a record is", key="format")
        if registry is not None and format_ not in (Format.AVRO, Format.PROTOBUF, Format.JSON):
            one.problem(f"a registry supports Avro, Protobuf and JSON, not {format_}", key="registry")
        if registry is not None and not registry.startswith(("http://", "https://")):
            one.problem(f"a registry has an address such as http://localhost:8081, not {registry!r}", key="registry")
        return Decoding(
            format=format_,
            schema=schema,
            message=message,
            registry=registry,
            schema_file=one.text("schema_file"),
            options=one.mapping("decode_options"),
        )

    def _schema(self, one: Section) -> str | None:
        schema, file = one.text("schema"), one.text("schema_file")
        if schema is not None and file is not None:
            one.problem("schema and schema_file are mutually exclusive", key="schema_file")
        if file is None:
            return schema
        try:
            return self._files.text(file)
        except (OSError, UnicodeDecodeError) as error:
            one.problem(f"the schema {file} cannot be read: {error}", key="schema_file")
        except ValueError as error:
            one.problem(str(error), key="schema_file")
        return ""

    @staticmethod
    def _watermark(one: Section) -> Watermark | None:
        text = one.text("watermark")
        if text is None:
            return None
        column, _, delay = text.strip().partition(" ")
        if not INTERVAL.fullmatch(delay):
            one.problem(f"watermark must be a column and a delay, as in `at 10 seconds`, not {text!r}", key="watermark")
        return Watermark(column=column, delay=delay.strip())

    def _sink(self, top: Section) -> Sink:
        section = top.section("sink", "sink")
        if section is None:
            top.problem("a pipeline needs a sink: topic, delta, iceberg, parquet or console")
            return Sink(kind=SinkKind.CONSOLE)
        kinds = [kind for kind in SinkKind if kind in section]
        if len(kinds) != 1:
            section.problem(f"a sink needs exactly one of {', '.join(SinkKind)}")
        kind = kinds[0] if kinds else SinkKind.CONSOLE
        sink = Sink(
            kind=kind,
            target=section.text(kind) or "" if kind in section and kind is not SinkKind.CONSOLE else "",
            format=Format(section.choice("format", SINK_FORMATS, Format.JSON) or Format.JSON),
            key=section.text("key"),
            partition_by=section.texts("partition_by"),
            options=section.mapping("options"),
        )
        if sink.key is not None and kind is not SinkKind.TOPIC:
            section.problem("only records of a topic have a key", key="key")
        if sink.partition_by and kind not in (SinkKind.DELTA, SinkKind.ICEBERG, SinkKind.PARQUET):
            section.problem("only tables are partitioned by columns", key="partition_by")
        section.finish()
        return sink

    @staticmethod
    def _trigger(top: Section) -> str:
        trigger = top.text("trigger", "1 second") or ""
        if trigger not in TRIGGERS_BY_NAME and not INTERVAL.fullmatch(trigger):
            top.problem(
                f"trigger must be an interval such as `5 seconds`, or {' or '.join(TRIGGERS_BY_NAME)}, not {trigger!r}",
                key="trigger",
            )
        return trigger.strip()
