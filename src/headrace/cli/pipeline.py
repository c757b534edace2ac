"""`headrace pipeline …`: init, check, run, start, stop, status, logs, list, reset."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.exit_codes import EXIT_CODES_HELP, NOT_FOUND, USAGE, examples
from headrace.cli.failures import fail, fail_not_found, failures_told
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from headrace.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from headrace.spark.pipeline.spec import Pipeline
    from headrace.spark.pipeline.state import PipelineState

app = typer.Typer(
    name="pipeline",
    help="Data pipelines on Spark: from topics, through SQL or Python, to topics or tables.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline: .yaml or .py")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A pipeline that was started.")]
Master = Annotated[str | None, typer.Option("--master", help="A Spark cluster, e.g. spark://host:7077.")]
Remote = Annotated[str | None, typer.Option("--remote", help="A Spark Connect server, e.g. sc://host:15002.")]
# A supervisor says nothing for its first moments; if it ends within them, the file or the lock was the reason.
STARTED_AFTER_S = 2.0
STOP_PATIENCE_S = 150.0

TEMPLATE = """\
# What flows from where to where. `headrace pipeline check {file}` tells what is wrong with it,
# `headrace pipeline run {file}` runs it here, `headrace pipeline start {file}` keeps it running.
pipeline: {name}
sources:
  orders:                      # the name that the SQL knows it by
    topic: orders
    format: json               # json, csv, avro, protobuf, text or raw
    schema: id bigint, customer string, amount double, at timestamp
    watermark: at 10 seconds   # how late a record may be
    reject:                    # rows that go to the dead letters
      the amount is negative: amount < 0
sql: |
  select window(at, '1 minute').start as minute, customer, sum(amount) as total
  from orders
  group by 1, 2
sink:
  topic: {name}                # or delta: /path, iceberg: /path, parquet: /path, console: yes
  key: customer
dead_letters: {name}.dead
trigger: 1 second
"""


@contextmanager
def _spark_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"pipelines need {error.name}, which is not installed", "pip install 'headrace[spark,lake]'")


def _read(file: Path) -> "Pipeline":
    from headrace.spark.pipeline.problems import PipelineRefused
    from headrace.spark.pipeline.reading import read_any

    try:
        return read_any(file)
    except PipelineRefused as refused:
        fail(str(refused), "`headrace pipeline init` writes a file to start from", USAGE)


def _state(name: str) -> "PipelineState":
    from headrace.spark.pipeline.state import PipelineState

    state = PipelineState(name)
    if not state.exists:
        fail_not_found(f"no pipeline {name} was ever started here", "`headrace pipeline list` shows what there is")
    return state


@app.command(epilog=examples("headrace pipeline init totals"))
def init(
    name: Annotated[str, typer.Argument(help="The pipeline's name.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a pipeline file to start from."""
    file = Path(f"{name}.yaml")
    if file.exists() and not force:
        fail(f"{file} is there already", "--force replaces it")
    file.write_text(TEMPLATE.format(name=name, file=file), encoding="utf-8")
    note(f"wrote {file}; `headrace pipeline check {file}` looks at it")


@app.command(epilog=examples("headrace pipeline check totals.yaml"))
def check(file: File, master: Master = None, remote: Remote = None) -> None:
    """Plan the query without running it, and say what is wrong and where."""
    pipeline = _read(file)
    with _spark_needed():
        from headrace.spark.pipeline.checking import check as check_query
        from headrace.spark.pipeline.problems import PipelineRefused
        from headrace.spark.session import open_session

        spark = open_session("headrace-check", master=master, remote=remote, settings=pipeline.spark)
        try:
            planned = check_query(spark, pipeline)
        except PipelineRefused as refused:
            fail(str(refused), code=USAGE)
        print_table(("column", "type"), [(one.name, one.dataType.simpleString()) for one in planned.output.schema])
        spark.stop()
    note(f"{pipeline.name}: {pipeline.sink.kind} {pipeline.sink.target} gets these columns")


def _worker_arguments(file: Path, bootstrap: str, master: str | None, remote: str | None) -> list[str]:
    from headrace.spark.pipeline.state import state_root

    arguments = [str(file.absolute()), "--bootstrap", bootstrap, "--state", str(state_root())]
    return arguments + (["--master", master] if master else []) + (["--remote", remote] if remote else [])


@app.command(epilog=examples("headrace pipeline run totals.yaml"))
def run(file: File, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, master: Master = None, remote: Remote = None) -> None:
    """Run a pipeline in the foreground; Ctrl-C ends it after the batch under way."""
    from headrace.spark.pipeline.state import AlreadyRunning, PipelineState, state_root
    from headrace.spark.pipeline.supervisor import Supervisor

    pipeline = _read(file)
    with failures_told(bootstrap), _spark_needed():
        supervisor = Supervisor(
            PipelineState(pipeline.name, state_root()), _worker_arguments(file, bootstrap, master, remote)
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, supervisor.ask_to_stop)
        try:
            raise typer.Exit(supervisor.run())
        except AlreadyRunning as error:
            fail(str(error))


@app.command(epilog=examples("headrace pipeline start totals.yaml"))
def start(file: File, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, master: Master = None, remote: Remote = None) -> None:
    """Keep a pipeline running in the background; it is started again when it fails."""
    from headrace.spark.pipeline.state import PipelineState, state_root

    pipeline = _read(file)
    state = PipelineState(pipeline.name, state_root())
    state.make()
    if state.holder() is not None:
        fail(f"{pipeline.name} runs already (process {state.holder()})", f"headrace pipeline stop {pipeline.name}")
    command = [sys.executable, "-m", "headrace.spark.pipeline.supervisor", pipeline.name, str(state_root())]
    with state.log.open("ab") as output:
        child = subprocess.Popen(
            [*command, *_worker_arguments(file, bootstrap, master, remote)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        child.wait(STARTED_AFTER_S)
    except subprocess.TimeoutExpired:
        note(f"{pipeline.name} runs as process {child.pid}; `headrace pipeline status` shows how it fares")
    else:
        fail(f"{pipeline.name} ended at once", f"headrace pipeline logs {pipeline.name}")


@app.command(epilog=examples("headrace pipeline stop totals"))
def stop(name: Name) -> None:
    """End a pipeline after the batch under way."""
    state = _state(name)
    holder = state.holder()
    if holder is None:
        note(f"{name} does not run")
        return
    os.kill(holder, signal.SIGTERM)
    deadline = time.monotonic() + STOP_PATIENCE_S
    while state.holder() is not None:
        if time.monotonic() > deadline:
            fail(f"{name} (process {holder}) does not stop", f"headrace pipeline logs {name}")
        time.sleep(0.1)
    note(f"{name} has stopped")


def _standing(state: "PipelineState") -> dict[str, Any]:
    from headrace.spark.pipeline.progress import Progress, standing

    run, progress = state.read("run") or {}, state.read("progress")
    newest = Progress.from_json(progress) if progress else None
    holder, now_ms = state.holder(), int(time.time() * 1000)
    said = standing(
        is_held=holder is not None,
        newest=newest,
        started_ms=run.get("started_ms", now_ms),  # Spark itself is still starting
        now_ms=now_ms,
        stalled_after_ms=run.get("stalled_after_ms", 0),
    )
    return {"pipeline": state.name, "state": said, "process": holder, "progress": progress, **run}


@app.command(epilog=examples("headrace pipeline status totals --json"))
def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One pipeline; all without it.")] = None,
    as_json: Json = False,
) -> None:
    """How pipelines fare: rows, rates, lag, dead letters."""
    from headrace.spark.pipeline.state import all_states

    rows = [_standing(state) for state in ([_state(name)] if name else all_states())]
    if as_json:
        print_json(rows)
        return
    columns = ("pipeline", "state", "process", "batch", "rows/s", "batch ms", "lag", "dead", "late")
    fields = ("batch", "rows_in_per_s", "batch_ms", "lag_records", "dead_letters", "late_rows")
    print_table(
        columns,
        [
            (
                row["pipeline"],
                row["state"],
                row["process"] or "-",
                *((row["progress"] or {}).get(one, "-") for one in fields),
            )
            for row in rows
        ],
        numbers=6,
    )


@app.command("list", epilog=examples("headrace pipeline list"))
def list_(as_json: Json = False) -> None:
    """The pipelines that were started on this machine."""
    status(None, as_json)


@app.command(epilog=examples("headrace pipeline logs totals --lines 100"))
def logs(name: Name, lines: Annotated[int, typer.Option("--lines", "-n", min=1)] = 50) -> None:
    """What a pipeline and its Spark have said."""
    state = _state(name)
    if not state.log.exists():
        raise typer.Exit(NOT_FOUND)
    print("\n".join(state.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]))


@app.command(epilog=examples("headrace pipeline reset totals --yes"))
def reset(name: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Forget how far a pipeline has come: it reads its sources from the beginning, and writes everything again."""
    state = _state(name)
    if state.holder() is not None:
        fail(f"{name} runs", f"headrace pipeline stop {name}")
    if not yes and not typer.confirm(f"{name} will read everything again and write it a second time. Go on?"):
        raise typer.Exit(1)
    state.forget()
    note(f"{name} begins anew when it is started")
