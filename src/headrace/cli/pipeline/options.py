"""Options and helpers that the commands of `headrace pipeline` share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.errors import fail, fail_not_found
from headrace.cli.common.exit_codes import USAGE

if TYPE_CHECKING:
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.state import PipelineState
    from headrace.pipeline.stored_definition import Definition

File = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file: .yaml or .py.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a pipeline that was started on this host.")]
Master = Annotated[
    str | None, typer.Option("--master", help="A Spark cluster, e.g. spark://host:7077. Default: this host.")
]
Remote = Annotated[str | None, typer.Option("--remote", help="A Spark Connect server, e.g. sc://host:15002.")]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", help=("Take ownership from another state directory. Use only if that directory is lost.")
    ),
]


@contextmanager
def spark_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"pipelines need {error.name}, which is not installed", "pip install 'headrace[spark,lake]'")


def read_file(file: Path) -> "Pipeline":
    return read_definition(file)[1]


def read_definition(file: Path) -> "tuple[Definition, Pipeline]":
    """Returns the definition to store, and the parsed pipeline; exits with USAGE if the file is invalid."""
    from headrace.pipeline import stored_definition
    from headrace.pipeline.errors import InvalidPipelineError

    try:
        return stored_definition.read_definition(file)
    except InvalidPipelineError as refused:
        fail(str(refused), "`headrace pipeline init` writes a template", USAGE)


def known_state(name: str) -> "PipelineState":
    from headrace.pipeline.state import PipelineState

    state = PipelineState(name)
    if not state.exists:
        fail_not_found(f"pipeline {name} was never started on this host", "`headrace pipeline list` lists pipelines")
    return state


def refuse_second(state: "PipelineState") -> None:
    """Fails if the pipeline is running, before its stored definition is replaced."""
    if (holder := state.holder()) is not None:
        fail(f"{state.name} is already running (process {holder})", f"headrace pipeline stop {state.name}")


def worker_arguments(
    state: "PipelineState",
    definition: "Definition",
    bootstrap: str,
    master: str | None,
    remote: str | None,
    *,
    take_over: bool = False,
) -> list[str]:
    """Stores the definition and returns the arguments of a worker that runs it; restarts use the same definition."""
    from headrace.pipeline.state import state_root
    from headrace.pipeline.stored_definition import store

    arguments = [str(store(state, definition)), "--bootstrap", bootstrap, "--state", str(state_root())]
    arguments += (["--master", master] if master else []) + (["--remote", remote] if remote else [])
    return arguments + (["--take-over"] if take_over else [])


def exit_with(code: int, name: str) -> None:
    """Exits with the worker's exit code; the worker has logged the reason."""
    from headrace.process.restart_policy import TAKEN_OVER

    if code == TAKEN_OVER:
        fail(f"another instance of {name} has taken over", "stop that instance first")
    if code:
        raise typer.Exit(code)
