"""`headrace pipeline status|list|metrics`: how pipelines fare, as a table, as plots that move, for Prometheus."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.metrics_output import Listen, print_or_serve
from headrace.cli.common.options import Json
from headrace.cli.common.output import console, print_json, print_table
from headrace.cli.pipeline.options import known_state

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.pipeline.state import PipelineState

BLOCKS = " ▁▂▃▄▅▆▇█"
PLOT_WIDTH = 40
LOOK_S = 1.0
COLUMNS = ("pipeline", "state", "process", "batch", "rows/s", "batch ms", "lag", "lag s", "dead", "late")
FIELDS = ("batch", "rows_in_per_s", "batch_ms", "lag_records", "lag_s", "dead_letters_total", "late_rows_total")
PLOTS = (("rows/s", "rows_in_per_s"), ("batch ms", "batch_ms"), ("lag", "lag_records"), ("dead", "dead_letters"))


def standing_of(state: "PipelineState") -> dict[str, Any]:
    from headrace.pipeline.progress import LastExit, Progress, reason, standing

    run, progress, failure = state.read("run") or {}, state.read("progress"), state.read("failure")
    newest = Progress.from_json(progress) if progress else None
    holder, now_ms = state.holder(), int(time.time() * 1000)
    ended = LastExit(**failure) if failure else None
    remote = state.read("remote")
    said = standing(
        is_held=holder is not None,
        remote=remote,
        ended=ended,
        newest=newest,
        # Spark itself is still starting; if a start has failed already, no start has come so far since.
        started_ms=run.get("started_ms", ended.at_ms if ended is not None else now_ms),
        now_ms=now_ms,
        stalled_after_ms=run.get("stalled_after_ms", 0),
    )
    why = reason(said, ended, is_held=holder is not None, remote=remote)
    return {"pipeline": state.name, "state": said, "reason": why, "process": holder, "progress": progress, **run}


def _said(row: dict[str, Any]) -> str:
    return f"{row['state']}: {row['reason']}" if row.get("reason") else str(row["state"])


def _states(name: str | None) -> list["PipelineState"]:
    from headrace.pipeline.state import all_states

    return [known_state(name)] if name else all_states()


def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One pipeline; all without it.")] = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it, with plots, until Ctrl-C.")] = False,
) -> None:
    """How pipelines fare: rows, rates, lag, dead letters."""
    if watch:
        _watch(name)
        return
    rows = [standing_of(state) for state in _states(name)]
    if as_json:
        print_json(rows)
    else:
        print_table(COLUMNS, [_cells(row) for row in rows], numbers=len(FIELDS))


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    progress = row["progress"] or {}
    return (row["pipeline"], _said(row), row["process"] or "-", *(progress.get(one, "-") for one in FIELDS))


def list_(as_json: Json = False) -> None:
    """The pipelines that were started on this machine."""
    status(None, as_json)


# Plots


def sparkline(values: Sequence[float], width: int = PLOT_WIDTH) -> str:
    """One character a value, the newest last, the highest block for the largest of them."""
    shown = list(values)[-width:]
    top = max(shown, default=0)
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[min(steps, -int(-value * steps // top)) if top > 0 and value > 0 else 0] for value in shown)


def _watch(name: str | None) -> None:
    from rich.live import Live

    try:
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(plots([(standing_of(state), state.read("recent") or []) for state in _states(name)]))
                live.refresh()
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        return


def plots(rows: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]]) -> "RenderableType":
    """A block for each pipeline: its standing, and a line for each figure with its course and its newest value."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row, recent in rows:
        progress = row["progress"] or {}
        lag = f"lag {progress.get('lag_s', 0)} s, {progress.get('dead_letters_total', 0)} dead letters in total"
        table.add_row(row["pipeline"], _said(row), f"batch {progress.get('batch', '-')}", lag)
        for label, field in PLOTS:
            course = [float(one.get(field, 0)) for one in recent]
            newest = f"{course[-1]:,.0f}" if course else "-"
            table.add_row("", label, newest, sparkline(course))
    return table


# Prometheus


def metrics(listen: Listen = None) -> None:
    """Every pipeline's progress and state for Prometheus: printed (for its textfile collector), or served."""
    print_or_serve(_metrics_text, listen)


def _metrics_text() -> str:
    from headrace.pipeline.metrics import families
    from headrace.telemetry.prometheus import TEXT, render

    return render(families([standing_of(state) for state in _states(None)]), TEXT).decode()
