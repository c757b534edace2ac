"""How a pipeline fares: what Spark says after each micro-batch, made small, and what it means.

Pure: a progress of Spark's (JSON) in, a Progress out. Whoever runs the query writes it down and tells others.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from headrace.process.restart_policy import DISK_FULL, TAKEN_OVER

# What the query counts as it goes, by the name under which Spark tells it.
OUTPUT_COUNT, DEAD_COUNT = "headrace_rows", "headrace_dead_letters"
READ = "headrace_read_"  # and the source: how many records, and the time of the newest one in milliseconds
RUNNING, STALLED, RESTARTING = "running", "stalled", "restarting"  # somebody keeps it going
STOPPED, FAILED, FENCED = "stopped", "failed", "fenced"  # nobody does
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
    lag_s: float  # while records wait: how old the newest one is that the slowest source has read
    state_rows: int
    state_bytes: int
    rows_in_total: int = 0  # since the pipeline's folder was made, over restarts
    rows_out_total: int = 0
    dead_letters_total: int = 0
    late_rows_total: int = 0
    batches_total: int = 0
    state: str = RUNNING  # or stalled, of one that reports because it makes no progress

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Progress":
        """What an earlier version wrote may lack what has a default."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})

    def after(self, before: "Progress | None") -> "Progress":
        """With the totals of everything up to this batch."""
        return replace(
            self,
            rows_in_total=(before.rows_in_total if before else 0) + self.rows_in,
            rows_out_total=(before.rows_out_total if before else 0) + self.rows_out,
            dead_letters_total=(before.dead_letters_total if before else 0) + self.dead_letters,
            late_rows_total=(before.late_rows_total if before else 0) + self.late_rows,
            batches_total=(before.batches_total if before else 0) + (before is None or before.batch != self.batch),
        )


def progress_of(pipeline: str, spark: Mapping[str, Any], at_ms: int) -> Progress:
    """From Spark's `StreamingQueryProgress` as a dictionary."""
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
    """What the query counted; over Spark Connect nobody counts what a table gets, so there it is what Spark says, of
    each topic once: rows and dead letters are two branches that read it."""
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
    """Offsets that are there and not read, of each partition once: rows and dead letters read it one by one."""
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
            if not topic.startswith("#")  # notes of the source (positions.py)
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}


class LastExit(NamedTuple):
    """How its process ended last."""

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
    """Whether it runs, or only seems to; `ended` if its process has ended by itself since it was started, `remote` if
    its query runs on a Spark Connect server and is not known to have ended."""
    if not is_held and remote is not None:
        return FAILED
    if not is_held:
        return STOPPED if ended is None else FENCED if ended.exit_code == TAKEN_OVER else FAILED
    if ended is not None and ended.at_ms >= started_ms:
        return FAILED if ended.exit_code == DISK_FULL else RESTARTING
    return STALLED if is_stalled(newest, started_ms, now_ms, stalled_after_ms) else RUNNING


def reason(said: str, ended: LastExit | None, *, is_held: bool = True, remote: str | None = None) -> str | None:
    """Why, where the state alone does not tell."""
    if not is_held and remote is not None:
        return f"its query may still run at {remote}; start the pipeline again, which replaces the query"
    return "disk full" if said == FAILED and ended is not None and ended.exit_code == DISK_FULL else None


def is_stalled(newest: Progress | None, started_ms: int, now_ms: int, stalled_after_ms: int) -> bool:
    """Whether nothing was heard for so long, since the last progress or since the start."""
    last_ms = max(newest.at_ms if newest is not None else 0, started_ms)
    return now_ms - last_ms > stalled_after_ms
