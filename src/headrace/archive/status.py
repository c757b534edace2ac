"""Status of an archive, for display and for metrics."""

from typing import Any

from headrace.archive.settings import ArchiveSettings, topic_view
from headrace.archive.table import Coverage, View, open_table
from headrace.client.sync.client import Cluster
from headrace.client.sync.offsets import LATEST, list_offsets
from headrace.model.ids import TopicPartition


def standing(cluster: Cluster, settings: ArchiveSettings) -> dict[str, Any]:
    table = open_table(settings, create=False)
    view = table.view() if table is not None else View([], Coverage(), 0)
    coverage = view.coverage
    asked = {TopicPartition(settings.topic, one): LATEST for one in topic_view(cluster, settings.topic).leaders}
    found = cluster.patiently("requesting offsets", lambda: list_offsets(cluster, asked, read_committed=True))
    ends = {partition.partition: offset or 0 for partition, offset in found.items()}
    partitions = [
        {
            "partition": one,
            "from": coverage.starts.get(one),
            "until": coverage.ends.get(one, 0),
            "lag": max(ends[one] - coverage.ends.get(one, 0), 0),
            "lost": coverage.lost.get(one, 0),
            "retention_may_remove_below": settings.until.get(one, 0) if settings.guards else None,
        }
        for one in sorted(ends)
    ]
    return {
        "topic": settings.topic,
        "kind": settings.kind,
        "path": settings.target,
        "schema": str(settings.decoding or ""),
        "guard": settings.guards,
        "files": len(view.files),
        "commits": view.commits,
        "archived": sum(end - coverage.starts.get(one, 0) for one, end in coverage.ends.items()),
        "lag": sum(one["lag"] or 0 for one in partitions),
        "lost": sum(coverage.lost.values()),
        "partitions": partitions,
    }
