"""`headrace archive …`: enable, disable, status, metrics, run."""

import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.errors import extras_needed, fail, fail_usage, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, examples
from headrace.cli.common.metrics_output import Listen, print_or_serve
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.common.output import note, plural, print_json, print_table

if TYPE_CHECKING:
    from headrace.archive.settings import ArchiveSettings
    from headrace.archive.worker import PassResult
    from headrace.client.sync.client import Cluster

app = typer.Typer(
    name="archive",
    help="Archive topics to Delta or Iceberg tables, exactly once, and show the state of archives.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
# How long to wait for an unavailable cluster. Interactive commands give up earlier than `run`.
PATIENCE_S = 15.0
RUN_PATIENCE_S = 300.0
SCRAPE_PATIENCE_S = 5.0  # half of Prometheus' default scrape timeout


@contextmanager
def _cluster(bootstrap: str, patience_s: float = PATIENCE_S) -> "Iterator[Cluster]":
    """Connects to the cluster; an exception inside ends the command with a message and an exit code."""
    with failures_told(bootstrap), extras_needed("archives"):
        from headrace.client.sync.client import ClientConfig, Cluster

        cluster = Cluster(ClientConfig(bootstrap=bootstrap, client_id="headrace-archive", patience_s=patience_s))
        try:
            yield cluster
        finally:
            cluster.close()


@app.command(epilog=examples("headrace archive enable orders --to delta --path /lake/orders"))
def enable(
    topic: Topic,
    to: Annotated[str, typer.Option("--to", metavar="delta|iceberg", help="Table format.")],
    path: Annotated[
        str, typer.Option("--path", help="Directory or URL, or CATALOG.NAMESPACE.TABLE of a PyIceberg catalog.")
    ],
    json_schema: Annotated[
        str,
        typer.Option(
            "--json", metavar="COLUMNS", help="Decode JSON values to columns, e.g. `id bigint, amount double`."
        ),
    ] = "",
    avro_schema: Annotated[
        Path | None, typer.Option("--avro", metavar="FILE", help="Decode Avro values with the schema in this file.")
    ] = None,
    decode: Annotated[
        list[str] | None,
        typer.Option(
            "--decode", metavar="NAME=VALUE", help="A decoder option, e.g. `timestamps=milliseconds`; repeatable."
        ),
    ] = None,
    guard: Annotated[bool, typer.Option(help="Retention keeps records until they are archived.")] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Configure the archive of a topic and create its table. `headrace archive run` fills it.

    Without --json or --avro, values are stored as bytes.
    """
    from headrace.config.keys.topic import LAKE_KINDS

    if to not in LAKE_KINDS:
        fail_usage(f"--to: unknown table format {to}", f"--to {' or --to '.join(LAKE_KINDS)}")
    with _cluster(bootstrap) as cluster:
        from headrace.archive.decode import ValueSchema
        from headrace.archive.settings import GUARD, SCHEMA, TABLE, ArchiveSettings, change, read_settings, topic_view
        from headrace.archive.table import open_table

        view = topic_view(cluster, topic)
        decoding = ValueSchema.parse(_schema(json_schema, avro_schema, decode or []))
        wanted = ArchiveSettings(topic, str(view.topic_id), to, _place(path), decoding, guard, {})
        there = read_settings(cluster, view)
        if there is not None and (there.kind, there.target) != (wanted.kind, wanted.target):
            fail(f"{topic} is already archived to {there.kind}:{there.target}", f"headrace archive disable {topic}")
        table = open_table(wanted, create=True)
        assert table is not None, "create=True creates the table"
        table.view()  # raises if the table is not the archive of this topic
        configs = {TABLE: f"{to}:{wanted.target}", SCHEMA: str(decoding or ""), GUARD: str(guard).lower()}
        change(cluster, topic, configs)
    note(f"archive of {topic} enabled: {to}:{wanted.target}; `headrace archive run` fills it")


def _schema(json_columns: str, avro_file: Path | None, options: list[str]) -> str:
    if options and not (json_columns or avro_file):
        fail_usage("--decode requires --json or --avro")
    if json_columns and avro_file is not None:
        fail_usage("--json and --avro exclude each other")
    if avro_file is not None:
        tree = json.loads(avro_file.read_text(encoding="utf-8"))
        return f"{';'.join(['avro', *options])}:{json.dumps(tree, separators=(',', ':'))}"
    return f"{';'.join(['json', *options])}:{json_columns}" if json_columns else ""


def _place(path: str) -> str:
    is_name = "/" not in path and path.count(".") >= 2
    return path if is_name or "://" in path else str(Path(path).absolute())


@app.command(epilog=examples("headrace archive disable orders"))
def disable(topic: Topic, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Stop archiving a topic. Keeps the table and releases the retention hold."""
    with _cluster(bootstrap) as cluster:
        from headrace.archive.settings import KEYS, change, read_settings, topic_view

        there = read_settings(cluster, topic_view(cluster, topic))
        if there is None:
            note(f"{topic} has no archive")
            return
        change(cluster, topic, {}, KEYS)
    note(f"archive of {topic} disabled; its table is kept at {there.target}")


@app.command(epilog=examples("headrace archive status", "headrace archive status orders --json"))
def status(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Default: every topic that has an archive.")
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show archives: table, files, commits, archived records, lag and lost records; --json adds the partitions."""
    with _cluster(bootstrap) as cluster:
        if topic is not None:
            from headrace.archive.settings import read_settings, topic_view
            from headrace.archive.status import standing

            settings = read_settings(cluster, topic_view(cluster, topic))
            if settings is None:
                fail(f"{topic} has no archive", f"headrace archive enable {topic} --to delta --path …")
            rows = [standing(cluster, settings)]
        else:
            rows = _standings(cluster)
    if as_json:
        print_json(rows)
        return
    columns = ("topic", "table", "guard", "files", "commits", "archived", "lag", "lost")
    print_table(columns, [_row(row) for row in rows], numbers=5)


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    table, guard = f"{row['kind']}:{row['path']}", "yes" if row["guard"] else "no"
    return (row["topic"], table, guard, row["files"], row["commits"], row["archived"], row["lag"], row["lost"])


def _standings(cluster: "Cluster") -> list[dict[str, Any]]:
    from headrace.archive.settings import archived_topics
    from headrace.archive.status import standing

    return [standing(cluster, settings) for settings in archived_topics(cluster)]


@app.command(epilog=examples("headrace archive metrics", "headrace archive metrics --listen 127.0.0.1:9110"))
def metrics(listen: Listen = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Print or serve lag, lost records and size of every archive as Prometheus metrics.

    Without --listen, prints them once, e.g. for the textfile collector of node_exporter.
    """
    with failures_told(bootstrap), extras_needed("archives"):
        print_or_serve(lambda: _metrics_text(bootstrap), listen)


def _metrics_text(bootstrap: str) -> str:
    """Uses a connection of its own, because scrapes may run concurrently."""
    from headrace.archive.metrics import families
    from headrace.client.sync.client import ClientConfig, Cluster
    from headrace.telemetry.prometheus import TEXT, render

    cluster = Cluster(ClientConfig(bootstrap=bootstrap, client_id="headrace-archive", patience_s=SCRAPE_PATIENCE_S))
    try:
        return render(families(_standings(cluster)), TEXT).decode()
    finally:
        cluster.close()


@app.command(epilog=examples("headrace archive run", "headrace archive run orders --once"))
def run(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]…", help="Default: every archived topic.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Archive up to the current end, then exit.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between commits.")] = 10.0,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, help="Seconds until retention may delete archived records.")
    ] = 300.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Archive topics continuously, in the foreground. Ctrl-C stops after the commit in flight.

    A second instance is safe: the table accepts only one of two concurrent commits.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    with _cluster(bootstrap, PATIENCE_S if once else RUN_PATIENCE_S) as cluster:
        from headrace.archive.settings import archived_topics, read_settings, topic_view
        from headrace.archive.worker import ArchiveWorker

        runner = ArchiveWorker(cluster, topics or (), grace_s=grace, tell=_tell)
        named = [read_settings(cluster, topic_view(cluster, name)) for name in topics or ()]
        for name, settings in zip(topics or (), named, strict=True):
            if settings is None:
                fail(f"{name} has no archive", f"headrace archive enable {name} --to delta --path …")
        if once:
            failed = []
            for one in [one for one in named if one is not None] or archived_topics(cluster):
                done = runner.try_to_catch_up(one)
                if done is None:
                    failed.append(one.topic)
                else:
                    note(f"{one.topic}: archived up to {_ends(done)}")
            if failed:
                fail(f"archiving failed: {', '.join(failed)}", "see the messages above")
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        note("archiving; press Ctrl-C to stop")
        runner.run(stop, interval)


def _tell(settings: "ArchiveSettings", done: "PassResult") -> None:
    if done.rows:
        logging.getLogger(__name__).info(
            "%s: %s archived, %s left", settings.topic, plural(done.rows, "row"), f"{done.lag:,}"
        )


def _ends(done: "PassResult") -> str:
    return ", ".join(f"{partition}:{end}" for partition, end in sorted(done.coverage.ends.items())) or "its beginning"
