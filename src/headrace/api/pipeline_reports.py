"""Reads the newest report of each pipeline from the report topic.

Reads on demand, from where the last read ended. The first read starts at most ten thousand records before the end of
each partition; pipelines without a report among them are not listed.
"""

import asyncio
from typing import Any

import orjson

from headrace.api.rest.messages import TIMESTAMP_MAX
from headrace.client.aio.client import Cluster
from headrace.client.aio.fetch import EARLIEST, LATEST, fetch, next_offset, offsets_at, readable_records
from headrace.client.core.errors import KafkaApiError
from headrace.model.errors import ErrorCode

TOPIC = "__headrace_pipelines"
REPORTS_BACK_MAX = 10_000
FETCH_BYTES = 1024 * 1024
# Pipeline names come from clients; this bounds the memory that records in the topic can take.
PIPELINES_MAX = 10_000


class PipelineReports:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._positions: dict[int, int] = {}
        self._newest: dict[str, dict[str, Any]] = {}
        self._turn = asyncio.Lock()

    async def reports(self) -> dict[str, dict[str, Any]]:
        """Returns the newest report of each pipeline by name; empty if the topic does not exist."""
        async with self._turn:
            try:
                topic = await self._cluster.topic(TOPIC)
            except KafkaApiError as refused:
                if refused.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                return {}
            partitions = [one.partition for one in topic.partitions]
            ends = await offsets_at(self._cluster, TOPIC, partitions, LATEST)
            for partition, end in ends.items():
                await self._read(partition, end)
        return self._newest

    async def _read(self, partition: int, end: int) -> None:
        at = self._positions.get(partition)
        if at is None or at > end:  # first read, or the topic was deleted and created again
            start = (await offsets_at(self._cluster, TOPIC, [partition], EARLIEST))[partition]
            at = max(start, end - REPORTS_BACK_MAX)
        while at < end:
            fetched = await fetch(self._cluster, TOPIC, partition, at, bytes_max=FETCH_BYTES)
            for record in readable_records(fetched, at):
                self._note(record.value)
            following = next_offset(fetched, at)
            if following <= at:
                break
            at = following
        self._positions[partition] = at

    def _note(self, value: bytes | None) -> None:
        report = parsed(value)
        if report is None:
            return
        name = report["pipeline"]
        known = self._newest.get(name)
        if known is None and len(self._newest) >= PIPELINES_MAX:
            return
        if known is None or known["at_ms"] <= report["at_ms"]:
            self._newest[name] = report


def parsed(value: bytes | None) -> dict[str, Any] | None:
    """Returns the report; None for a record that is not a valid report. Every client may write to the topic."""
    try:
        report = orjson.loads(value or b"")
        orjson.dumps(report)  # orjson parses deeper nesting than it serializes
    except (orjson.JSONDecodeError, TypeError):
        return None
    if not isinstance(report, dict):
        return None
    name, at_ms = report.get("pipeline"), report.get("at_ms")
    is_whole = type(at_ms) is int and 0 <= at_ms <= TIMESTAMP_MAX
    return report if isinstance(name, str) and is_whole else None
