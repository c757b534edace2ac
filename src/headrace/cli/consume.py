"""`headrace consume`: prints records from a start position to the current end, or continuously."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from headrace.cli.common.errors import fail, fail_kafka, fail_not_found, fail_usage, failures_told
from headrace.cli.common.exit_codes import UNREACHABLE, examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Timeout
from headrace.cli.common.output import note, print_json_line, progress
from headrace.cli.common.record_text import FIELDS, Incoming, as_json, check_template, render
from headrace.cli.common.time_arguments import parse_time_ms
from headrace.client.librdkafka import REACH_TIMEOUT_S, check_reachable, make_consumer
from headrace.client.message_headers import headers_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

EPILOG = examples(
    "headrace consume orders",
    "headrace consume orders -f   (new records, until Ctrl-C)",
    "headrace consume orders --offset -10 --json   (the last 10 of each partition)",
    "headrace consume orders --from-time 15m -n 100",
    "headrace consume orders --format '{partition}/{offset} {key}: {value}\\n'",
)
VERBOSE_FORMAT = "{partition}\\t{offset}\\t{timestamp}\\t{key}\\t{headers}\\t{value}\\n"
BATCH_RECORDS = 500
POLL_S = 0.2
_TIMESTAMP_TYPES = {1: "CreateTime", 2: "LogAppendTime"}


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Do not stop at the end; wait for new records.")
    ] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; repeatable.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the beginning. Default without --follow.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", help="Start at this offset; -10: the last 10.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from-time", metavar="TIME", help="Start at this time: ISO date, milliseconds, or 15m ago."),
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print partition, offset, timestamp, key and headers.")
    ] = False,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="TEXT", help=f"Output template with fields in braces: {', '.join(FIELDS)}."),
    ] = None,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Also print records of open and aborted transactions.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print records, from the beginning or from an offset or timestamp, to the current end of the topic.

    Joins no consumer group and commits no offsets. With --follow, starts at the end and runs until Ctrl-C.
    """
    if sum((from_beginning, offset is not None, from_time is not None)) > 1:
        fail_usage("more than one start position", "pass only one of --from-beginning, --offset, --from-time")
    if sum((json_lines, verbose, format_ is not None)) > 1:
        fail_usage("more than one output format", "pass only one of --json, --verbose, --format")
    template = format_ or (VERBOSE_FORMAT if verbose else "{value}\\n")
    with failures_told(bootstrap):
        check_template(template)
        check_reachable(bootstrap, min(timeout, REACH_TIMEOUT_S))
        isolation = "read_uncommitted" if uncommitted else "read_committed"
        consumer = make_consumer(bootstrap, {"isolation.level": isolation})
        try:
            places = _places(consumer, topic, partition, timeout)
            when_ms = None if from_time is None else parse_time_ms(from_time)
            begin = "end" if follow and not from_beginning else "beginning"
            starts = _starts(consumer, places, offset, when_ms, begin, timeout)
            reader = _records(consumer, starts, bootstrap, timeout, follow=follow)
            printed = _print(reader, count, None if json_lines else template)
        finally:
            consumer.close()
    if sys.stderr.isatty() and not sys.stdout.isatty():
        note(f"{printed:,} records")


def _places(consumer: "Consumer", topic: str, wanted: list[int] | None, timeout_s: float) -> "list[TopicPartition]":
    from confluent_kafka import TopicPartition

    metadata = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
    if metadata.error is not None:
        fail_kafka(metadata.error.code(), f"{topic}: {metadata.error.str()}")
    for number in wanted or []:
        if number not in metadata.partitions:
            fail_not_found(f"{topic} has no partition {number}", f"partitions: 0 to {len(metadata.partitions) - 1}")
    return [TopicPartition(topic, number) for number in wanted or sorted(metadata.partitions)]


def _starts(
    consumer: "Consumer",
    places: "list[TopicPartition]",
    offset: int | None,
    when_ms: int | None,
    begin: str,
    timeout_s: float,
) -> "list[TopicPartition]":
    """Returns the partitions with their start offsets."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if when_ms is not None:
        asked = [TopicPartition(place.topic, place.partition, when_ms) for place in places]
        return consumer.offsets_for_times(asked, timeout=timeout_s)
    if offset is None:
        offset_word = OFFSET_END if begin == "end" else OFFSET_BEGINNING
        return [TopicPartition(place.topic, place.partition, offset_word) for place in places]
    bounds = [consumer.get_watermark_offsets(place, timeout=timeout_s) for place in places]
    if offset >= 0 and not any(low <= offset <= high for low, high in bounds):
        _fail_no_offset(places[0].topic, f"offset {offset}")
    # The offset is clamped to each partition's range: some partitions may end before it or start after it.
    return [
        TopicPartition(place.topic, place.partition, min(high, max(low, offset if offset >= 0 else high + offset)))
        for place, (low, high) in zip(places, bounds, strict=True)
    ]


def _records(
    consumer: "Consumer",
    starts: "list[TopicPartition]",
    bootstrap: str,
    timeout_s: float,
    *,
    follow: bool,
) -> Iterator[list[Incoming]]:
    """Yields records as they arrive; without `follow`, ends when every partition was read to its end."""
    from confluent_kafka import KafkaError

    consumer.assign(starts)
    unfinished = {start.partition for start in starts}
    last_sign_of_life = time.monotonic()
    while follow or unfinished:
        messages = consumer.consume(BATCH_RECORDS, timeout=POLL_S)
        yield [_incoming(message) for message in messages if message.error() is None]
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            else:
                _fail_reading(error, message, bootstrap)
        if messages:
            last_sign_of_life = time.monotonic()
        elif not follow and time.monotonic() - last_sign_of_life > timeout_s:
            fail(f"the broker sent no response for {timeout_s:g} s", "raise --timeout", UNREACHABLE)


def _fail_reading(error: Any, message: Any, bootstrap: str) -> None:
    from confluent_kafka import KafkaError

    where = f"{message.topic()}-{message.partition()}" if message.topic() else bootstrap
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        _fail_no_offset(message.topic(), "the next offset")
    fail_kafka(error.code(), f"{where}: {error.str()}", bootstrap)


def _fail_no_offset(topic: str, which: str) -> NoReturn:
    fail(
        f"{topic} does not have {which}: deleted, or not written yet",
        f"`headrace topics describe {topic}` shows the available offsets",
    )


def _incoming(message: Any) -> Incoming:
    kind, timestamp = message.timestamp()
    return Incoming(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp if kind else -1,
        _TIMESTAMP_TYPES.get(kind),
        message.key(),
        message.value(),
        headers_of(message),
    )


def _print(batches: Iterator[list[Incoming]], count: int | None, template: str | None) -> int:
    """Prints up to `count` records and returns their number. Ctrl-C ends it without an error."""
    printed = 0
    watched = count is not None and not sys.stdout.isatty()
    with suppress(KeyboardInterrupt), progress("reading", count, wanted=watched) as advance:
        for batch in batches:
            for record in batch[: None if count is None else count - printed]:
                if template is None:
                    print_json_line(as_json(record))
                else:
                    sys.stdout.buffer.write(render(record, template))
                printed += 1
                advance(1)
            sys.stdout.flush()  # the reader of a pipe gets each batch at once
            if printed == count:
                break
    sys.stdout.flush()
    return printed
