"""How a pipeline fares: what Spark says after each micro-batch, made small, and what it means.

Pure: a progress of Spark's (JSON) in, a Progress out. Whoever runs the query writes it down and tells others.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What the query counts as it goes, by the name under which Spark tells it.
OUTPUT_COUNT, DEAD_COUNT = "headrace_rows", "headrace_dead_letters"
RUNNING, STALLED, STOPPED, FAILED = "running", "stalled", "stopped", "failed"


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
    state_rows: int
    state_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Progress":
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


def progress_of(pipeline: str, spark: Mapping[str, Any], at_ms: int) -> Progress:
    """From Spark's `StreamingQueryProgress` as a dictionary."""
    operators = spark.get("stateOperators") or []
    observed = spark.get("observedMetrics") or {}
    return Progress(
        pipeline=pipeline,
        at_ms=at_ms,
        batch=int(spark.get("batchId", -1)),
        rows_in=sum(int(source.get("numInputRows") or 0) for source in spark.get("sources") or []),
        rows_in_per_s=round(float(spark.get("processedRowsPerSecond") or 0.0), 1),
        rows_out=_count(observed, OUTPUT_COUNT),
        dead_letters=_count(observed, DEAD_COUNT),
        late_rows=sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators),
        batch_ms=int((spark.get("durationMs") or {}).get("triggerExecution", 0)),
        lag_records=sum(_lag(source) for source in spark.get("sources") or []),
        state_rows=sum(int(one.get("numRowsTotal") or 0) for one in operators),
        state_bytes=sum(int(one.get("memoryUsedBytes") or 0) for one in operators),
    )


def _count(observed: Mapping[str, Any], name: str) -> int:
    row = observed.get(name) or {}
    return int(row.get("count") or 0) if isinstance(row, Mapping) else int(row[0])


def _lag(source: Mapping[str, Any]) -> int:
    """Offsets that are there and not read: those of our source, `{"topic": {"0": 17}}`, and of Spark's own."""
    latest, end = (_offsets(source.get(name)) for name in ("latestOffset", "endOffset"))
    return sum(max(offset - end.get(place, offset), 0) for place, offset in latest.items())


def _offsets(value: Any) -> dict[tuple[str, str], int]:
    try:
        topics = json.loads(value) if isinstance(value, str) else value
        topics = topics.get("positions", topics)
        return {
            (topic, partition): int(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}


def standing(*, is_held: bool, newest: Progress | None, started_ms: int, now_ms: int, stalled_after_ms: int) -> str:
    """Whether it runs, or only seems to."""
    if not is_held:
        return STOPPED
    last_ms = newest.at_ms if newest is not None else started_ms
    return STALLED if now_ms - last_ms > stalled_after_ms else RUNNING
