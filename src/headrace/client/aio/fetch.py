"""Reads a partition by offset: one Fetch, and the records in it that are visible to the reader.

Omits records before the requested offset in the same batch, control records and records of aborted transactions.
Keeps no state between calls.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

from headrace.client.aio.client import Cluster
from headrace.client.core.errors import KafkaApiError
from headrace.model.errors import CorruptBatch, ErrorCode
from headrace.records.batch import BatchHeader, batch_crc, walk
from headrace.records.compression import Buffer
from headrace.records.control import read_marker
from headrace.records.record import Record, iter_records

EARLIEST, LATEST = -2, -1
# Maximum decompressed size of one batch. A topic may allow messages of 1 GiB, and one reader could exhaust the memory.
# Batches above this limit need a Kafka client.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024


class Fetched(NamedTuple):
    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # first offset and producer id, in offset order


async def fetch(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int,
    wait_ms: int = 0,
    committed_only: bool = True,
) -> Fetched:
    """Returns the batches from `offset` on, at least one if any exists; waits up to `wait_ms` if none does."""
    from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
    from kio.schema.fetch.v12.response import FetchResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i8, i32, i32Timedelta, i64

    wanted = FetchPartition(partition=i32(partition), fetch_offset=i64(offset), partition_max_bytes=i32(bytes_max))
    request = FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        min_bytes=i32(1),
        max_bytes=i32(bytes_max),
        isolation_level=i8(int(committed_only)),
        topics=(FetchTopic(topic=TopicName(topic), partitions=(wanted,)),),
        forgotten_topics_data=(),
    )
    answer = await cluster.call_leader(topic, partition, request, FetchResponse, wait_ms / 1000)
    if answer.error_code:
        raise KafkaApiError(int(answer.error_code), answer.error_code.name)
    (data,) = answer.responses[0].partitions
    _check(cluster, topic, partition, int(data.error_code))
    aborted = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ())
    return Fetched(
        data.records or b"", data.high_watermark, data.last_stable_offset, data.log_start_offset, tuple(aborted)
    )


async def offsets_at(
    cluster: Cluster, topic: str, partitions: Sequence[int], timestamp_ms: int, *, committed_only: bool = True
) -> dict[int, int]:
    """Returns for each partition the first offset at or after a timestamp, EARLIEST or LATEST; -1 if there is none."""
    found = {}
    for partition in partitions:
        found[partition] = await _offset_at(cluster, topic, partition, timestamp_ms, committed_only)
    return found


async def _offset_at(cluster: Cluster, topic: str, partition: int, timestamp_ms: int, committed_only: bool) -> int:
    from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
    from kio.schema.list_offsets.v7.response import ListOffsetsResponse
    from kio.schema.types import BrokerId, TopicName
    from kio.static.primitive import i8, i32, i64

    wanted = ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp_ms))
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(int(committed_only)),
        topics=(ListOffsetsTopic(name=TopicName(topic), partitions=(wanted,)),),
    )
    answer = await cluster.call_leader(topic, partition, request, ListOffsetsResponse)
    (row,) = answer.topics[0].partitions
    _check(cluster, topic, partition, int(row.error_code))
    return int(row.offset)


def _check(cluster: Cluster, topic: str, partition: int, code: int) -> None:
    if not code:
        return
    cluster.forget(topic)
    error = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
    raise KafkaApiError(code, f"{topic}-{partition}: {error.name}")


class Readable(NamedTuple):
    """A batch with visible records, and the offset of the next batch."""

    header: BatchHeader
    batch: Buffer
    next_offset: int


def readable_batches(fetched: Fetched) -> Iterator[Readable]:
    """Yields the batches in offset order, without control batches and batches of aborted transactions.

    The broker lists each aborted transaction by its first offset; it ends at its producer's next abort marker. Raises
    CorruptBatch if a checksum does not match.
    """
    view = memoryview(fetched.records)
    waiting = list(fetched.aborted)
    aborting: set[int] = set()
    for position, header in walk(view):
        batch = view[position : position + header.total_bytes]
        while waiting and waiting[0][0] <= header.last_offset:
            aborting.add(waiting.pop(0)[1])
        if header.is_control:
            marker = read_marker(batch, header)
            if marker is not None and not marker.commits:
                aborting.discard(header.producer_id)
            continue
        if header.is_transactional and header.producer_id in aborting:
            continue
        if header.crc != batch_crc(batch):
            raise CorruptBatch(f"the batch at offset {header.base_offset} is corrupt on arrival")
        yield Readable(header, batch, header.next_offset)


def readable_records(fetched: Fetched, offset: int) -> Iterator[Record]:
    for header, batch, _ in readable_batches(fetched):
        for record in iter_records(batch, header, bytes_max=UNPACKED_BYTES_MAX):
            if record.offset >= offset:
                yield record


def next_offset(fetched: Fetched, offset: int) -> int:
    """Returns the offset at which to continue after this response, past records that are not visible."""
    last = offset
    for _, header in walk(memoryview(fetched.records)):
        last = max(last, header.next_offset)
    return last
