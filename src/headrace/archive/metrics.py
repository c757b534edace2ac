"""Prometheus metrics of archives. Pure; performs no I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.telemetry.metrics import Kind, Metric, MetricFamily

_OF_TOPIC, _OF_PARTITION = ("topic",), ("topic", "partition")
# Field of a status (`status.py`) → metric.
OF_TOPIC = {
    "files": Metric("headrace_archive_files", Kind.GAUGE, "Live files of the topic's table.", _OF_TOPIC),
    "commits": Metric("headrace_archive_commits_total", Kind.COUNTER, "Commits to the topic's table.", _OF_TOPIC),
}
OF_PARTITION = {
    "until": Metric("headrace_archive_offset", Kind.GAUGE, "The archive holds what is below.", _OF_PARTITION),
    "lag": Metric("headrace_archive_lag_records", Kind.GAUGE, "Offsets that wait to be archived.", _OF_PARTITION),
    "lost": Metric(
        "headrace_archive_lost_total",
        Kind.COUNTER,
        "Offsets that were deleted before they were archived.",
        _OF_PARTITION,
    ),
    "retention_may_remove_below": Metric(
        "headrace_archive_guard_offset", Kind.GAUGE, "Retention keeps everything from here on.", _OF_PARTITION
    ),
}
ALL = (*OF_TOPIC.values(), *OF_PARTITION.values())


def families(standings: Iterable[Mapping[str, Any]]) -> list[MetricFamily]:
    """Returns metrics of the statuses that `headrace archive status --json` shows. Without a retention hold there is no
    series of its offset.
    """
    rows = list(standings)
    of_topic = [
        MetricFamily(metric, [((row["topic"],), row[field]) for row in rows]) for field, metric in OF_TOPIC.items()
    ]
    places = [(row["topic"], one) for row in rows for one in row["partitions"]]
    of_partition = [
        MetricFamily(
            metric, [((topic, str(one["partition"])), one[field]) for topic, one in places if one[field] is not None]
        )
        for field, metric in OF_PARTITION.items()
    ]
    return of_topic + of_partition
