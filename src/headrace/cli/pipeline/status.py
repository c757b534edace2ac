"""`headrace pipeline status|list|metrics`: the state of pipelines as a table, live plots, or Prometheus metrics."""

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
        # Without a start time Spark is still starting, or every start since the last failure has failed.
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
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Default: all pipelines.")] = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update until Ctrl-C, with plots.")] = False,
) -> None:
    """Show state, rows, rates, lag, dead-letter records and late rows of pipelines."""
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
    """List the pipelines that were started on this host."""
    status(None, as_json)


# Plots


def sparkline(values: Sequence[float], width: int = PLOT_WIDTH) -> str:
    """Returns one character per value, the newest last; the highest block is the largest value."""
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
    """Returns a block per pipeline: its state, and a line per metric with a plot and the newest value."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row, recent in rows:
        progress = row["progress"] or {}
        lag = f"lag {progress.get('lag_s', 0)} s, {progress.get('dead_letters_total', 0)} dead-letter records"
        table.add_row(row["pipeline"], _said(row), f"batch {progress.get('batch', '-')}", lag)
        for label, field in PLOTS:
            course = [float(one.get(field, 0)) for one in recent]
            newest = f"{course[-1]:,.0f}" if course else "-"
            table.add_row("", label, newest, sparkline(course))
    return table


# Prometheus


def metrics(listen: Listen = None) -> None:
    """Print or serve progress and state of every pipeline as Prometheus metrics.

    Without --listen, prints them once, e.g. for the textfile collector of node_exporter.
    """
    print_or_serve(_metrics_text, listen)


def _metrics_text() -> str:
    from headrace.pipeline.metrics import families
    from headrace.telemetry.prometheus import TEXT, render

    return render(families([standing_of(state) for state in _states(None)]), TEXT).decode()
