"""`headrace pipeline …`: init, check, run, start, stop, logs, reset. The other commands have files beside this one."""

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
    help="Data pipelines on Spark: from topics, through SQL or Python, to topics or tables.",
    no_args_is_help=True,
    epilog=EXIT_CODES_HELP,
)

# A supervisor is Python and no Spark yet: a second where nothing else runs, many on a machine that is full of work.
START_PATIENCE_S = 120.0
LOOK_S = 0.05  # between looks at who runs it; nobody at a terminal notices
STOP_PATIENCE_S = 150.0


@app.command(epilog=examples("headrace pipeline init totals", "headrace pipeline init totals --template sdp"))
def init(
    name: Annotated[str, typer.Argument(help="The pipeline's name.")],
    template: Annotated[
        Template, typer.Option("--template", "-t", help="A file for `headrace pipeline`, or a project for Spark's own.")
    ] = Template.YAML,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write a pipeline to start from: one YAML or Python file, or a project of Spark Declarative Pipelines."""
    from headrace.pipeline.parser import NAME

    if template is Template.SDP and not name.isidentifier():
        fail_usage(f"{name!r} is to be the name of a table", "use letters, digits and '_'")
    if not NAME.fullmatch(name):
        fail_usage(f"no pipeline can be called {name!r}", "use letters, digits, '.', '_' and '-'")
    files = files_of(template, name)
    there = [file for file in files if file.exists()]
    if there and not force:
        fail(f"{there[0]} is there already", "--force replaces it")
    with failures_told():
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    note(f"wrote {', '.join(map(str, files))}; {next_step(template, name)}")


@app.command(epilog=examples("headrace pipeline check totals.yaml"))
def check(file: File, master: Master = None, remote: Remote = None) -> None:
    """Plan the query without running it, and say what is wrong and where."""
    pipeline = read_file(file)
    with failures_told(), spark_needed():
        from headrace.spark.pipeline.check import check as check_query
        from headrace.spark.session import session

        with session("headrace-check", master=master, remote=remote, settings=pipeline.spark) as spark:
            planned = check_query(spark, pipeline)
            columns = [(one.name, one.dataType.simpleString()) for one in planned.output.schema]
    print_table(("column", "type"), columns)
    note(f"{pipeline.name}: {pipeline.sink.kind} {pipeline.sink.target} gets these columns")


@app.command(epilog=examples("headrace pipeline run totals.yaml"))
def run(
    file: File,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    remote: Remote = None,
    take_over: TakeOver = False,
) -> None:
    """Run a pipeline in the foreground; Ctrl-C ends it after the batch under way."""
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
    """Keep a pipeline running in the background; it is started again when it fails."""
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
    note(f"{pipeline.name} runs as process {child.pid}; `headrace pipeline status` shows how it fares")


def _wait_until_held(state: "PipelineState", child: "subprocess.Popen[bytes]") -> None:
    """From then on a second start is refused, and `stop` knows whom to ask."""
    deadline = time.monotonic() + START_PATIENCE_S
    while state.holder() != child.pid:
        if child.poll() is not None:
            fail(f"{state.name} ended at once", f"headrace pipeline logs {state.name}")
        if time.monotonic() > deadline:
            child.kill()
            fail(f"{state.name} did not begin within {START_PATIENCE_S:.0f} s", f"headrace pipeline logs {state.name}")
        time.sleep(LOOK_S)


@app.command(epilog=examples("headrace pipeline stop totals"))
def stop(name: Name) -> None:
    """End a pipeline after the batch under way."""
    state = known_state(name)
    holder = state.holder()
    if holder is None:
        note(f"{name} does not run")
        return
    os.kill(holder, signal.SIGTERM)
    deadline = time.monotonic() + STOP_PATIENCE_S
    while state.holder() is not None:
        if time.monotonic() > deadline:
            fail(f"{name} (process {holder}) does not stop", f"headrace pipeline logs {name}")
        time.sleep(LOOK_S)
    note(f"{name} has stopped")


@app.command(epilog=examples("headrace pipeline logs totals --lines 100"))
def logs(name: Name, lines: Annotated[int, typer.Option("--lines", "-n", min=1)] = 50) -> None:
    """What a pipeline and its Spark have said."""
    state = known_state(name)
    if not state.log.exists():
        raise typer.Exit(NOT_FOUND)
    print("\n".join(state.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]))


@app.command(epilog=examples("headrace pipeline reset totals --yes"))
def reset(name: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False) -> None:
    """Forget how far a pipeline has come: it reads its sources from the beginning, and writes everything again."""
    from headrace.pipeline.state import PipelineState
    from headrace.spark.pipeline.start_offsets import BACKFILL_SUFFIX

    state, beside = known_state(name), PipelineState(name + BACKFILL_SUFFIX)
    for one in (state, beside):
        if one.holder() is not None:
            fail(f"{one.name} runs", f"headrace pipeline stop {one.name}")
    if not yes and not typer.confirm(f"{name} will read everything again and write it a second time. Continue?"):
        raise typer.Exit(1)
    beside.forget()
    state.forget()
    note(f"{name} starts from the beginning")


app.command(epilog=examples("headrace pipeline status totals --json", "headrace pipeline status --watch"))(status)
app.command("list", epilog=examples("headrace pipeline list"))(list_)
app.command(epilog=examples("headrace pipeline metrics", "headrace pipeline metrics --listen 127.0.0.1:9109"))(metrics)
app.command(epilog=examples("headrace pipeline backfill totals.yaml"))(backfill)
app.command("retry-dead", epilog=examples("headrace pipeline retry-dead totals.yaml --dry-run"))(retry_dead)
