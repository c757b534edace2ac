"""`headrace pipeline …`: init, check, run, start, stop, logs, reset. Other modules of the package have the rest."""

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.errors import fail, fail_usage, failures_told
from headrace.cli.common.exit_codes import EXIT_CODES_HELP, NOT_FOUND, examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap
from headrace.cli.common.output import note, print_table
from headrace.cli.pipeline.backfill import backfill, retry_dead
from headrace.cli.pipeline.options import (
    File,
    Master,
    Name,
    Remote,
    TakeOver,
    exit_with,
    known_state,
    read_definition,
    read_file,
    refuse_second,
    spark_needed,
    worker_arguments,
)
from headrace.cli.pipeline.status import list_, metrics, status
from headrace.cli.pipeline.templates import Template, files_of, next_step

if TYPE_CHECKING:
    from headrace.pipeline.state import PipelineState

app = typer.Typer(
    name="pipeline",
    help="Run Spark pipelines that read topics, apply SQL or Python, and write to topics or tables.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

# The supervisor starts before Spark does: in a second on an idle host, in many on an overloaded one.
START_PATIENCE_S = 120.0
LOOK_S = 0.05  # polling interval for the process that holds the state directory
STOP_PATIENCE_S = 150.0


@app.command(epilog=examples("headrace pipeline init totals", "headrace pipeline init totals --template sdp"))
def init(
    name: Annotated[str, typer.Argument(help="The pipeline's name.")],
    template: Annotated[
        Template,
        typer.Option("--template", "-t", help="A pipeline file, or a project of Spark Declarative Pipelines (sdp)."),
    ] = Template.YAML,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a pipeline template: a YAML or Python file, or a project of Spark Declarative Pipelines."""
    from headrace.pipeline.parser import NAME

    if template is Template.SDP and not name.isidentifier():
        fail_usage(f"{name!r} is not a valid table name", "use letters, digits and '_'")
    if not NAME.fullmatch(name):
        fail_usage(f"{name!r} is not a valid pipeline name", "use letters, digits, '.', '_' and '-'")
    files = files_of(template, name)
    there = [file for file in files if file.exists()]
    if there and not force:
        fail(f"{there[0]} already exists", "pass --force to overwrite it")
    with failures_told():
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    note(f"wrote {', '.join(map(str, files))}; {next_step(template, name)}")


@app.command(epilog=examples("headrace pipeline check totals.yaml"))
def check(file: File, master: Master = None, remote: Remote = None) -> None:
    """Plan the query without running it. Prints the columns of the sink, or the errors with their line."""
    pipeline = read_file(file)
    with failures_told(), spark_needed():
        from headrace.spark.pipeline.check import check as check_query
        from headrace.spark.session import session

        with session("headrace-check", master=master, remote=remote, settings=pipeline.spark) as spark:
            planned = check_query(spark, pipeline)
            columns = [(one.name, one.dataType.simpleString()) for one in planned.output.schema]
    print_table(("column", "type"), columns)
    note(f"{pipeline.name}: columns of {pipeline.sink.kind} {pipeline.sink.target}")


@app.command(epilog=examples("headrace pipeline run totals.yaml"))
def run(
    file: File,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    remote: Remote = None,
    take_over: TakeOver = False,
) -> None:
    """Run a pipeline in the foreground, and restart it when it fails. Ctrl-C stops it after the current batch."""
    from headrace.pipeline.state import AlreadyRunning, PipelineState, state_root
    from headrace.pipeline.supervisor import Supervisor

    definition, pipeline = read_definition(file)
    state = PipelineState(pipeline.name, state_root())
    refuse_second(state)
    with failures_told(bootstrap), spark_needed():
        arguments = worker_arguments(state, definition, bootstrap, master, remote, take_over=take_over)
        supervisor = Supervisor(state, arguments)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, supervisor.ask_to_stop)
        try:
            code = supervisor.run()
        except AlreadyRunning as error:
            fail(str(error))
    exit_with(code, pipeline.name)


@app.command(epilog=examples("headrace pipeline start totals.yaml"))
def start(
    file: File,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    remote: Remote = None,
    take_over: TakeOver = False,
) -> None:
    """Run a pipeline in the background, and restart it when it fails. `headrace pipeline stop` stops it."""
    from headrace.pipeline.state import PipelineState, state_root

    definition, pipeline = read_definition(file)
    state = PipelineState(pipeline.name, state_root())
    state.make()
    refuse_second(state)
    arguments = worker_arguments(state, definition, bootstrap, master, remote, take_over=take_over)
    command = [sys.executable, "-m", "headrace.pipeline.supervisor", pipeline.name, str(state_root())]
    with state.log.open("ab") as output:
        child = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _wait_until_held(state, child)
    note(f"{pipeline.name} runs as process {child.pid}; `headrace pipeline status` shows its progress")


def _wait_until_held(state: "PipelineState", child: "subprocess.Popen[bytes]") -> None:
    """Waits until the supervisor holds the state directory: then `start` rejects a second one and `stop` finds it."""
    deadline = time.monotonic() + START_PATIENCE_S
    while state.holder() != child.pid:
        if child.poll() is not None:
            fail(f"{state.name} exited during its start", f"headrace pipeline logs {state.name}")
        if time.monotonic() > deadline:
            child.kill()
            fail(f"{state.name} did not start within {START_PATIENCE_S:.0f} s", f"headrace pipeline logs {state.name}")
        time.sleep(LOOK_S)


@app.command(epilog=examples("headrace pipeline stop totals"))
def stop(name: Name) -> None:
    """Stop a pipeline after the current batch."""
    state = known_state(name)
    holder = state.holder()
    if holder is None:
        note(f"{name} is not running")
        return
    os.kill(holder, signal.SIGTERM)
    deadline = time.monotonic() + STOP_PATIENCE_S
    while state.holder() is not None:
        if time.monotonic() > deadline:
            fail(f"{name} (process {holder}) did not stop", f"headrace pipeline logs {name}")
        time.sleep(LOOK_S)
    note(f"{name} stopped")


@app.command(epilog=examples("headrace pipeline logs totals --lines 100"))
def logs(name: Name, lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Number of lines.")] = 50) -> None:
    """Print the last lines of the log of a pipeline and its Spark."""
    state = known_state(name)
    if not state.log.exists():
        raise typer.Exit(NOT_FOUND)
    print("\n".join(state.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]))


@app.command(epilog=examples("headrace pipeline reset totals --yes"))
def reset(name: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False) -> None:
    """Delete the checkpoint of a pipeline: all records are read and written again."""
    from headrace.pipeline.state import PipelineState
    from headrace.spark.pipeline.start_offsets import BACKFILL_SUFFIX

    state, beside = known_state(name), PipelineState(name + BACKFILL_SUFFIX)
    for one in (state, beside):
        if one.holder() is not None:
            fail(f"{one.name} is running", f"headrace pipeline stop {one.name}")
    if not yes and not typer.confirm(f"{name} will read all records again and write them a second time. Continue?"):
        raise typer.Exit(1)
    beside.forget()
    state.forget()
    note(f"{name} was reset; its next start reads from the beginning")


app.command(epilog=examples("headrace pipeline status totals --json", "headrace pipeline status --watch"))(status)
app.command("list", epilog=examples("headrace pipeline list"))(list_)
app.command(epilog=examples("headrace pipeline metrics", "headrace pipeline metrics --listen 127.0.0.1:9109"))(metrics)
app.command(epilog=examples("headrace pipeline backfill totals.yaml"))(backfill)
app.command("retry-dead", epilog=examples("headrace pipeline retry-dead totals.yaml --dry-run"))(retry_dead)
