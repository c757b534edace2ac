"""`headrace produce`: produces one record, or one record per line of a file or of stdin."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from headrace.cli.common.errors import fail, fail_kafka, fail_usage, failures_told
from headrace.cli.common.exit_codes import examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Timeout
from headrace.cli.common.output import human_bytes, note, plural, progress
from headrace.cli.common.record_text import BadLine, Outgoing, parse_header, parse_json_record, parse_line
from headrace.cli.common.time_arguments import parse_time_ms
from headrace.client.librdkafka import REACH_TIMEOUT_S, check_reachable, make_producer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

EPILOG = examples(
    "headrace produce orders hello --key 42 --header trace=abc",
    "headrace produce orders < lines.txt",
    "headrace produce orders --file log.txt --key-separator :",
    "headrace consume old --json | headrace produce new --json",
)
POLL_EVERY = 1000  # records between two polls for delivery reports


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    value: Annotated[
        str | None,
        typer.Argument(metavar="[VALUE]", help="Value of the record. Default: one record per line of stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record; repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: by hash of the key; without a key, any.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", metavar="TIME", help="Milliseconds, ISO date, or 15m ago.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-F", help="Read lines from a file.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Lines are key, this separator, value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Lines are JSON, as printed by consume --json.")] = False,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="Send a null value for --key.")] = False,
    acks: Annotated[str, typer.Option("--acks", help="all, 1 or 0.")] = "all",
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Produce VALUE, or one record per line of stdin or of a file.

    By default records are acknowledged by all in-sync replicas, and the producer is idempotent.
    """
    if tombstone and (value is not None or key is None):
        fail_usage("--tombstone requires --key and no value", "headrace produce TOPIC --key 42 --tombstone")
    if acks not in ("all", "-1", "0", "1"):
        fail_usage(f"invalid --acks {acks!r}", "--acks all, --acks 1 or --acks 0")
    with failures_told(bootstrap):
        base = Outgoing(
            None if tombstone else (value or "").encode(),
            None if key is None else key.encode(),
            [parse_header(text) for text in header or []],
            partition,
            None if timestamp is None else parse_time_ms(timestamp),
        )
        check_reachable(bootstrap, min(timeout, REACH_TIMEOUT_S))
        single = value is not None or tombstone
        overrides: dict[str, Any] = {
            "acks": acks,
            # librdkafka waits 0.5 s for a producer ID. A single record is sent without one, and without retries, so
            # that it cannot be duplicated.
            "enable.idempotence": acks in ("all", "-1") and not single,
            "compression.type": compression,
            "message.timeout.ms": int(timeout * 1000),
        } | ({"retries": 0} if single else {})
        sender = Sender(make_producer(bootstrap, overrides), topic, bootstrap)
        if single:
            sender.send(base)
        else:
            _send_lines(sender, base, file, key_separator, timeout, as_json=as_json)
        sender.finish(timeout)
    if not quiet:
        note(sender.summary())


def _send_lines(
    sender: "Sender", base: Outgoing, file: Path | None, key_separator: str | None, timeout_s: float, *, as_json: bool
) -> None:
    if file is None and sys.stdin.isatty():
        note("one record per line; press Ctrl-D to end")
    separator = None if key_separator is None else key_separator.encode()
    stream: BinaryIO = sys.stdin.buffer if file is None else file.open("rb")
    total = os.fstat(stream.fileno()).st_size if file is not None else None
    with stream, progress(f"→ {sender.topic}", total, wanted=file is not None) as advance:
        for number, line in enumerate(_lines(stream), 1):
            try:
                record = parse_json_record(line) if as_json else parse_line(line, separator)
            except BadLine as error:
                sender.finish(timeout_s)
                fail_usage(f"line {number}: {error}", f"fix the line; the {number - 1} lines before it were sent")
            sender.send(_with_defaults(record, base))
            advance(len(line) + 1)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    for line in stream:
        yield line.removesuffix(b"\n")


def _with_defaults(record: Outgoing, base: Outgoing) -> Outgoing:
    return Outgoing(
        record.value,
        base.key if record.key is None else record.key,
        [*record.headers, *base.headers],
        base.partition if record.partition is None else record.partition,
        base.timestamp if record.timestamp is None else record.timestamp,
    )


class Sender:
    """Produces records, counts acknowledgements, and exits at the first delivery error."""

    def __init__(self, producer: "Producer", topic: str, bootstrap: str) -> None:
        self.topic = topic
        self._producer = producer
        self._bootstrap = bootstrap
        self._began = time.monotonic()
        self._sent = 0
        self._bytes = 0
        self._delivered = 0
        self._last_place = ""
        self._refused: KafkaError | None = None

    def send(self, record: Outgoing) -> None:
        from confluent_kafka import KafkaException

        optional: dict[str, Any] = {}
        if record.partition is not None:
            optional["partition"] = record.partition
        if record.timestamp is not None:
            optional["timestamp"] = record.timestamp
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=self._on_delivery,
                    **optional,
                )
                break
            except BufferError:  # librdkafka's queue is full
                self._producer.poll(0.1)
                self._stop_if_refused()
            except KafkaException as error:
                self._refused = error.args[0]
                self._stop_if_refused()
        self._sent += 1
        self._bytes += len(record.value or b"") + len(record.key or b"")
        if self._sent % POLL_EVERY == 0:
            self._producer.poll(0)
            self._stop_if_refused()

    def finish(self, timeout_s: float) -> None:
        waiting = self._producer.flush(timeout_s)
        self._stop_if_refused()
        if waiting:
            fail(
                f"{plural(waiting, 'record')} of {self._sent:,} were not acknowledged within {timeout_s:g} s",
                "see the broker's log, or raise --timeout",
                code=4,
            )

    def summary(self) -> str:
        if self._sent == 1:
            return f"sent to {self._last_place}"
        seconds = time.monotonic() - self._began
        return f"sent {plural(self._sent, 'record')} to {self.topic} ({human_bytes(self._bytes)} in {seconds:.1f} s)"

    def _on_delivery(self, error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            self._refused = self._refused or error
            return
        self._delivered += 1
        self._last_place = f"{message.topic()}-{message.partition()} at offset {message.offset()}"

    def _stop_if_refused(self) -> None:
        if self._refused is not None:
            sent = f" ({self._delivered:,} of {self._sent:,} were acknowledged)" if self._sent > 1 else ""
            fail_kafka(self._refused.code(), f"{self.topic}: {self._refused.str()}{sent}", self._bootstrap)
