"""Prometheus metrics of pipelines. Pure; performs no I/O."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headrace.pipeline.progress import RESTARTING, RUNNING, STALLED, STANDINGS
from headrace.telemetry.metrics import Kind, Metric, MetricFamily

_LABELS = ("pipeline",)


def _counter(name: str, help_: str) -> Metric:
    return Metric(f"headrace_pipeline_{name}", Kind.COUNTER, help_, _LABELS)


def _gauge(name: str, help_: str, labels: tuple[str, ...] = _LABELS) -> Metric:
    return Metric(f"headrace_pipeline_{name}", Kind.GAUGE, help_, labels)


class Figure(NamedTuple):
    metric: Metric
    field: str  # of a Progress
    is_ms: bool = False  # the field is in ms, the metric in seconds


UP = _gauge("up", "Whether a process runs the pipeline, well or not.")
STATE = _gauge(
    "state", "1 for the state that the pipeline is in; stalled is the one to be woken for.", (*_LABELS, "state")
)
OF_PROGRESS = (
    Figure(_counter("rows_read_total", "Records read from the sources."), "rows_in_total"),
    Figure(_counter("rows_written_total", "Rows handed to the sink."), "rows_out_total"),
    Figure(_counter("dead_letters_total", "Records that did not fit."), "dead_letters_total"),
    Figure(_counter("late_rows_total", "Rows that came later than the watermark allows."), "late_rows_total"),
    Figure(_counter("batches_total", "Micro-batches."), "batches_total"),
    Figure(_gauge("rows_read_per_second", "Of the last batch."), "rows_in_per_s"),
    Figure(_gauge("batch_seconds", "How long the last batch took."), "batch_ms", is_ms=True),
    Figure(_gauge("lag_records", "Records that wait to be read."), "lag_records"),
    Figure(_gauge("lag_seconds", "While records wait: the age of the newest one that was read."), "lag_s"),
    Figure(_gauge("state_rows", "Rows that windows, joins and the like keep."), "state_rows"),
    Figure(_gauge("state_bytes", "Memory of that state."), "state_bytes"),
    Figure(_gauge("last_progress_timestamp_seconds", "When the last batch ended."), "at_ms", is_ms=True),
)
ALL = (UP, STATE, *(figure.metric for figure in OF_PROGRESS))


def families(standings: Iterable[Mapping[str, Any]]) -> list[MetricFamily]:
    """Returns metrics of the statuses that `headrace pipeline status --json` shows. A pipeline without a report has no
    series of its progress.
    """
    rows = [(row["pipeline"], row["state"], row["progress"]) for row in standings]
    up = MetricFamily(UP, [((name,), int(state in (RUNNING, STALLED, RESTARTING))) for name, state, _ in rows])
    states = MetricFamily(STATE, [((name, one), int(state == one)) for name, state, _ in rows for one in STANDINGS])
    told = [(name, progress) for name, _, progress in rows if progress is not None]
    return [up, states, *(_family(figure, told) for figure in OF_PROGRESS)]


def _family(figure: Figure, told: list[tuple[str, Mapping[str, Any]]]) -> MetricFamily:
    samples = [((name,), progress[figure.field]) for name, progress in told]
    return MetricFamily(figure.metric, [(labels, value / 1000 if figure.is_ms else value) for labels, value in samples])
