"""Progress and status of a pipeline, derived from Spark's progress after each micro-batch. Pure; performs no I/O."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from headrace.process.restart_policy import DISK_FULL, TAKEN_OVER

# Names of the observed counters in Spark's progress.
OUTPUT_COUNT, DEAD_COUNT = "headrace_rows", "headrace_dead_letters"
READ = "headrace_read_"  # followed by the source's name: number of records, and the newest timestamp in ms
RUNNING, STALLED, RESTARTING = "running", "stalled", "restarting"  # states with a supervisor
STOPPED, FAILED, FENCED = "stopped", "failed", "fenced"  # states without one; failed also while the disk is full
STANDINGS = (RUNNING, STALLED, RESTARTING, STOPPED, FAILED, FENCED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    pipeline: str
    at_ms: int
    batch: int
    rows_in: int
    rows_in_per_s: float
    rows_out: int
    dead_letters: int
    late_rows: int
    batch_ms: int
    lag_records: int
    lag_s: float  # while records are unread: age of the newest record read by the slowest source
    state_rows: int
    state_bytes: int
    rows_in_total: int = 0  # since the state directory was created, over restarts
    rows_out_total: int = 0
    dead_letters_total: int = 0
    late_rows_total: int = 0
    batches_total: int = 0
    state: str = RUNNING  # or stalled, in a report of a pipeline without progress

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Progress":
        """Accepts a value of an earlier version: missing fields get their defaults."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})

    def after(self, before: "Progress | None") -> "Progress":
        """Returns this progress with the totals up to this batch."""
        return replace(
            self,
            rows_in_total=(before.rows_in_total if before else 0) + self.rows_in,
            rows_out_total=(before.rows_out_total if before else 0) + self.rows_out,
            dead_letters_total=(before.dead_letters_total if before else 0) + self.dead_letters,
            late_rows_total=(before.late_rows_total if before else 0) + self.late_rows,
            batches_total=(before.batches_total if before else 0) + (before is None or before.batch != self.batch),
        )


def progress_of(pipeline: str, spark: Mapping[str, Any], at_ms: int) -> Progress:
    """Converts Spark's `StreamingQueryProgress`, given as a dictionary."""
    operators = spark.get("stateOperators") or []
    observed = spark.get("observedMetrics") or {}
    lag_records = _lag(spark.get("sources") or [])
    rows_in, batch_ms = _rows_in(spark, observed), int((spark.get("durationMs") or {}).get("triggerExecution", 0))
    return Progress(
        pipeline=pipeline,
        at_ms=at_ms,
        batch=int(spark.get("batchId", -1)),
        rows_in=rows_in,
        rows_in_per_s=round(rows_in * 1000 / batch_ms, 1) if batch_ms else 0.0,
        rows_out=_count(observed, OUTPUT_COUNT),
        dead_letters=_count(observed, DEAD_COUNT),
        late_rows=sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators),
        batch_ms=batch_ms,
        lag_records=lag_records,
        lag_s=_lag_s(observed, at_ms) if lag_records else 0.0,
        state_rows=sum(int(one.get("numRowsTotal") or 0) for one in operators),
        state_bytes=sum(int(one.get("memoryUsedBytes") or 0) for one in operators),
    )


def _rows_in(spark: Mapping[str, Any], observed: Mapping[str, Any]) -> int:
    """Returns the number of records read: the observed counters, or, where they are missing (tables over Spark
    Connect), Spark's own count. Rows and dead-letter records are two branches that read each topic; it is counted
    once.
    """
    counted = sum(_count(observed, name) for name in observed if name.startswith(READ))
    said: dict[frozenset[tuple[str, str]], int] = {}
    for source in spark.get("sources") or []:
        places = frozenset(_offsets(source.get("endOffset")))
        said[places] = max(said.get(places, 0), int(source.get("numInputRows") or 0))
    return counted or sum(said.values())


def _count(observed: Mapping[str, Any], name: str) -> int:
    return int((observed.get(name) or {}).get("count") or 0)


def _lag_s(observed: Mapping[str, Any], at_ms: int) -> float:
    newest = [(row or {}).get("newest_ms") for name, row in observed.items() if name.startswith(READ)]
    times = [int(at) for at in newest if at is not None]
    return round(max(at_ms - min(times), 0) / 1000, 1) if times else 0.0


def _lag(sources: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of unread offsets. Rows and dead-letter records read the same partitions, which are counted
    once.
    """
    waiting: dict[tuple[str, str], int] = {}
    for source in sources:
        latest, end = (_offsets(source.get(name)) for name in ("latestOffset", "endOffset"))
        for place, offset in latest.items():
            waiting[place] = max(waiting.get(place, 0), offset - end.get(place, offset))
    return sum(waiting.values())


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    try:
        topics = json.loads(value) if isinstance(value, str) else value
        return {
            (topic, partition): int(offset)
            for topic, partitions in topics.items()
            if not topic.startswith("#")  # metadata of the source (client/reader/offsets.py)
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}


class LastExit(NamedTuple):
    """Exit code and time of the last worker process that ended by itself."""

    exit_code: int
    at_ms: int


def standing(
    *,
    is_held: bool,
    newest: Progress | None,
    started_ms: int,
    now_ms: int,
    stalled_after_ms: int,
    ended: LastExit | None = None,
    remote: str | None = None,
) -> str:
    """Returns the state. `ended` is set if the worker has ended by itself since the start, `remote` if the query runs
    on a Spark Connect server and is not known to have ended.
    """
    if not is_held and remote is not None:
        return FAILED
    if not is_held:
        return STOPPED if ended is None else FENCED if ended.exit_code == TAKEN_OVER else FAILED
    if ended is not None and ended.at_ms >= started_ms:
        return FAILED if ended.exit_code == DISK_FULL else RESTARTING
    return STALLED if is_stalled(newest, started_ms, now_ms, stalled_after_ms) else RUNNING


def reason(said: str, ended: LastExit | None, *, is_held: bool = True, remote: str | None = None) -> str | None:
    """Returns the reason for the state; None if the state is self-explanatory."""
    if not is_held and remote is not None:
        return f"its query may still run at {remote}; start the pipeline again, which replaces the query"
    return "disk full" if said == FAILED and ended is not None and ended.exit_code == DISK_FULL else None


def is_stalled(newest: Progress | None, started_ms: int, now_ms: int, stalled_after_ms: int) -> bool:
    """Whether there was no progress for this long, since the last progress or the start."""
    last_ms = max(newest.at_ms if newest is not None else 0, started_ms)
    return now_ms - last_ms > stalled_after_ms
