"""The Fetch call: reads one partition from an offset, as records or as the log's own record batches."""

import asyncio

from headrace.api.grpc.clients import Clients
from headrace.api.grpc.errors import invalid
from headrace.api.grpc.validation import default, partition_index, topic_name, within
from headrace.client.aio.client import Cluster
from headrace.client.aio.fetch import EARLIEST, LATEST, Fetched, next_offset, offsets_at, readable_records
from headrace.client.aio.fetch import fetch as fetch_batches
from headrace.rpc import headrace_pb2 as pb

BYTES_DEFAULT = 1024 * 1024
# gRPC clients reject responses over 4 MiB by default. A response exceeds this limit by at most one record.
BYTES_MAX = 3 * 1024 * 1024
RECORDS_MAX = 1_000_000
WAIT_MS_MAX = 60_000
# Decoding this much takes about a millisecond. Larger fetches are decoded in a thread.
UNPACKED_ON_LOOP_BYTES = 32 * 1024


async def fetch(clients: Clients, request: pb.FetchRequest) -> pb.FetchResponse:
    topic, partition = topic_name(request.topic), partition_index(request.partition)
    bytes_max = default("max_bytes", request.max_bytes, BYTES_DEFAULT, BYTES_MAX)
    records_max = default("max_records", request.max_records, RECORDS_MAX, RECORDS_MAX)
    wait_ms = within("max_wait_ms", request.max_wait_ms, 0, WAIT_MS_MAX)
    within("offset", request.offset, EARLIEST)
    if request.isolation_level not in (pb.READ_COMMITTED, pb.READ_UNCOMMITTED):
        raise invalid(f"isolation_level is {request.isolation_level}; it may be 0 or 1")
    committed_only = request.isolation_level == pb.READ_COMMITTED

    async def attempt() -> tuple[Fetched, int]:
        start = await _start(clients.cluster, topic, partition, request.offset, committed_only)
        fetched = await fetch_batches(
            clients.cluster,
            topic,
            partition,
            start,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            committed_only=committed_only,
        )
        return fetched, start

    fetched, start = await clients.cluster.patiently(attempt)
    answer = pb.FetchResponse(
        next_offset=next_offset(fetched, start),
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset,
    )
    if request.format == pb.RECORD_BATCHES:
        answer.record_batches = fetched.records
    elif request.format != pb.RECORDS:
        raise invalid(f"format is {request.format}; it may be 0 or 1")
    elif len(fetched.records) > UNPACKED_ON_LOOP_BYTES:
        await asyncio.to_thread(_unpack, fetched, start, answer, bytes_max, records_max)
    else:
        _unpack(fetched, start, answer, bytes_max, records_max)
    return answer


async def _start(cluster: Cluster, topic: str, partition: int, offset: int, committed_only: bool) -> int:
    if offset not in (EARLIEST, LATEST):
        return offset
    return (await offsets_at(cluster, topic, [partition], offset, committed_only=committed_only))[partition]


def _unpack(fetched: Fetched, start: int, answer: pb.FetchResponse, bytes_max: int, records_max: int) -> None:
    """Adds as many records as fit, at least one. Compressed batches can hold far more than the request allows."""
    size = 0
    for count, record in enumerate(readable_records(fetched, start)):
        size += len(record.key or b"") + len(record.value or b"")
        if count and (size > bytes_max or count >= records_max):
            answer.next_offset = record.offset
            return
        made = answer.records.add(
            offset=record.offset, timestamp_ms=record.timestamp, key=record.key, value=record.value
        )
        for name, value in record.headers:
            made.headers.add(name=name, value=value)
