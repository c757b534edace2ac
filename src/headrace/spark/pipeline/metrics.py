"""How pipelines fare, in Prometheus' text format. Pure: standings in, text out."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headrace.spark.pipeline.progress import RESTARTING, RUNNING, STALLED, STANDINGS


class Metric(NamedTuple):
    name: str
    kind: str
    help: str
    field: str  # of a Progress
    scale: float | None = None


METRICS = (
    Metric("rows_read_total", "counter", "Records read from the sources.", "rows_in_total"),
    Metric("rows_written_total", "counter", "Rows handed to the sink.", "rows_out_total"),
    Metric("dead_letters_total", "counter", "Records that did not fit.", "dead_letters_total"),
    Metric("late_rows_total", "counter", "Rows that came later than the watermark allows.", "late_rows_total"),
    Metric("batches_total", "counter", "Micro-batches.", "batches_total"),
    Metric("rows_read_per_second", "gauge", "Of the last batch.", "rows_in_per_s"),
    Metric("batch_seconds", "gauge", "How long the last batch took.", "batch_ms", 0.001),
    Metric("lag_records", "gauge", "Records that wait to be read.", "lag_records"),
    Metric("lag_seconds", "gauge", "While records wait: the age of the newest one that was read.", "lag_s"),
    Metric("state_rows", "gauge", "Rows that windows, joins and the like keep.", "state_rows"),
    Metric("state_bytes", "gauge", "Memory of that state.", "state_bytes"),
    Metric("last_progress_timestamp_seconds", "gauge", "When the last batch ended.", "at_ms", 0.001),
)
PREFIX = "headrace_pipeline_"


def prometheus_text(standings: Iterable[Mapping[str, Any]]) -> str:
    """Of what `headrace pipeline status --json` shows."""
    rows = list(standings)
    lines = _family("up", "gauge", "Whether a process runs the pipeline, well or not.")
    lines += [_line("up", int(row["state"] in (RUNNING, STALLED, RESTARTING)), row) for row in rows]
    lines += _family("state", "gauge", "1 for the state that the pipeline is in; stalled is the one to be woken for.")
    lines += [_line("state", int(row["state"] == one), row, state=one) for row in rows for one in STANDINGS]
    for metric in METRICS:
        lines += _family(metric.name, metric.kind, metric.help)
        known = [row for row in rows if row["progress"] is not None]
        lines += [_line(metric.name, _scaled(row["progress"][metric.field], metric.scale), row) for row in known]
    return "\n".join(lines) + "\n"


def _scaled(value: float, scale: float | None) -> float:
    return value if scale is None else value * scale


def _family(name: str, kind: str, help_: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {help_}", f"# TYPE {PREFIX}{name} {kind}"]


def _line(name: str, value: float, row: Mapping[str, Any], **labels: str) -> str:
    # A pipeline's name has no character that would have to be escaped.
    named = ",".join(f'{key}="{text}"' for key, text in {"pipeline": row["pipeline"], **labels}.items())
    number = f"{value:.10g}" if isinstance(value, float) else str(value)  # totals keep every digit
    return f"{PREFIX}{name}{{{named}}} {number}"
