"""Reads partitions by offset, and whole topics without a group. Bounds the size of one response. The records come from
`client/aio/fetch.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import orjson

from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import Problem
from headrace.api.rest.messages import Format, shown
from headrace.api.rest.sse import TopicPositions
from headrace.client.aio.client import TOPIC_TRUSTED_S
from headrace.client.aio.consumer import GroupConsumer, GroupConsumerConfig
from headrace.client.aio.fetch import (
    EARLIEST,
    UNPACKED_BYTES_MAX,
    Fetched,
    fetch,
    next_offset,
    offsets_at,
    readable_batches,
    readable_records,
)
from headrace.client.aio.start_offsets import offsets_of
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.model.errors import ErrorCode
from headrace.records.batch import BatchHeader
from headrace.records.compression import Buffer
from headrace.records.record import NO_VALUE, Record, headers_of, iter_record_spans, records_section

# One Kafka fetch: large enough to make the round trip negligible, small enough to hold a few hundred of them.
FETCH_BYTES_MAX = 1024 * 1024
STREAM_FETCH_BYTES_MAX = 4 * 1024 * 1024
# One JSON response, measured in bytes of keys and values. Further records need another request. A single record may be
# larger.
ANSWER_BYTES_MAX = 8 * 1024 * 1024
# Lines rendered before the event loop runs other tasks, about 3 ms, and bytes rendered before they are sent: a fetch of
# a few megabytes may decompress to gigabytes.
LINES_AT_ONCE, LINE_BYTES_AT_ONCE = 1_000, 1024 * 1024
# Maximum wait of one fetch of a stream, after which the stream checks whether to end.
FOLLOW_WAIT_MS = 1_000


class ReadPosition(NamedTuple):
    topic: str
    partition: int


class Choice(NamedTuple):
    """Isolation level and format of a read."""

    committed_only: bool = True
    format: Format = "auto"


class Read(NamedTuple):
    records: list[Record]
    next_offset: int
    high_watermark: int
    start_offset: int


async def first_offset(client: ApiClients, place: ReadPosition, offset: int | None, timestamp_ms: int | None) -> int:
    """Returns the offset to start at: the given offset, the first record of a timestamp, or the log start."""
    if offset is not None:
        return offset
    cluster, (topic, partition) = client.cluster, place
    when = EARLIEST if timestamp_ms is None else timestamp_ms
    found = (await cluster.patiently(lambda: offsets_at(cluster, topic, [partition], when)))[partition]
    if found >= 0:
        return found
    # No record is as recent as the timestamp.
    ends = await cluster.patiently(lambda: offsets_at(cluster, topic, [partition], -1))
    return ends[partition]


async def read(
    client: ApiClients, place: ReadPosition, offset: int, count_max: int, wait_ms: int, choice: Choice
) -> Read:
    """Returns at most `count_max` records from `offset`. Waits up to `wait_ms` if there is none."""
    records: list[Record] = []
    position, size = offset, 0
    while True:
        wait = 0 if records or position > offset else wait_ms
        fetched = await fetch_from(client, place, position, FETCH_BYTES_MAX, wait, choice)
        for record in readable_records(fetched, position):
            size += len(record.key or b"") + len(record.value or b"")
            if records and size > ANSWER_BYTES_MAX:
                return Read(records, record.offset, fetched.high_watermark, fetched.log_start_offset)
            records.append(record)
            if len(records) == count_max:
                return Read(records, record.offset + 1, fetched.high_watermark, fetched.log_start_offset)
        following = next_offset(fetched, position)
        if following == position:
            return Read(records, following, fetched.high_watermark, fetched.log_start_offset)
        position = following


async def fetch_from(
    client: ApiClients, place: ReadPosition, offset: int, bytes_max: int, wait_ms: int, choice: Choice
) -> Fetched:
    """Fetches once, with retries while the broker restarts or the leader moves. Does not wait if the process is
    stopping.
    """

    async def attempt() -> Fetched:
        return await fetch(
            client.cluster,
            place.topic,
            place.partition,
            offset,
            bytes_max=bytes_max,
            wait_ms=0 if client.stopping.is_set() else wait_ms,
            committed_only=choice.committed_only,
        )

    try:
        return await client.cluster.patiently(attempt)
    except KafkaApiError as refused:
        if refused.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        cluster, (topic, partition) = client.cluster, place
        starts = await offsets_at(cluster, topic, [partition], EARLIEST)
        ends = await offsets_at(cluster, topic, [partition], -1)
        raise Problem(
            422,
            f"{topic}-{partition} has offsets {starts[partition]} to {ends[partition]}, and no {offset}",
            code=ErrorCode.OFFSET_OUT_OF_RANGE,
            more={"start_offset": starts[partition], "end_offset": ends[partition]},
        ) from None


async def lines(
    client: ApiClients, place: ReadPosition, offset: int, count_max: int | None, follow: bool, choice: Choice
) -> AsyncIterator[bytes]:
    """Yields the partition as NDJSON from `offset` to its end; with `follow` until the gateway stops.

    The next fetch is in flight while the lines of the last one are rendered and sent. A stopping gateway ends only
    responses with `follow`: an earlier end of another response would be taken for the end of the partition.
    """
    fetching = asyncio.create_task(_next(client, place, offset, follow, choice))
    left = count_max
    try:
        while left is None or left > 0:
            fetched = await fetching
            position = next_offset(fetched, offset)
            at_end = position == offset
            if client.stopping.is_set() if follow else at_end:
                return
            fetching = asyncio.create_task(_next(client, place, position, follow, choice))
            for piece, count in _pieces(place, fetched, offset, left, choice):
                yield piece
                left = None if left is None else left - count
                await asyncio.sleep(0)
            offset = position
    finally:
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)


async def _next(client: ApiClients, place: ReadPosition, offset: int, follow: bool, choice: Choice) -> Fetched:
    wait_ms = FOLLOW_WAIT_MS if follow else 0
    return await fetch_from(client, place, offset, STREAM_FETCH_BYTES_MAX, wait_ms, choice)


def _pieces(
    place: ReadPosition, fetched: Fetched, offset: int, left: int | None, choice: Choice
) -> Iterator[tuple[bytes, int]]:
    """Yields lines in chunks of a few milliseconds' work, with the number of lines."""
    made: list[bytes] = []
    size = 0
    for header, batch, _ in readable_batches(fetched):
        for line in _lines(place.partition, header, batch, offset, choice.format):
            if left is not None and left <= len(made):
                break
            made.append(line)
            size += len(line)
            if len(made) == LINES_AT_ONCE or size >= LINE_BYTES_AT_ONCE:
                yield b"".join(made), len(made)
                left = None if left is None else left - len(made)
                made, size = [], 0
    if made:
        yield b"".join(made), len(made)


def _lines(partition: int, header: BatchHeader, batch: Buffer, offset: int, format_: Format) -> Iterator[bytes]:
    """Yields one line per record. Most records are UTF-8 without headers. They skip the Record class, at a third of the
    cost.
    """
    dumps, newline = orjson.dumps, orjson.OPT_APPEND_NEWLINE
    section = records_section(batch, header, bytes_max=UNPACKED_BYTES_MAX)
    plain = format_ == "auto"
    for at, timestamp, key, value_at, value_end, _, end in iter_record_spans(section, header):
        if at < offset:
            continue
        if plain and value_at != NO_VALUE and value_end + 1 == end:
            try:
                text = section[value_at:value_end].decode()
                name = None if key is None else key.decode()
            except UnicodeDecodeError:
                pass
            else:
                shortcut = {"partition": partition, "offset": at, "timestamp": timestamp, "key": name, "value": text}
                yield dumps(shortcut, option=newline)
                continue
        value = None if value_at == NO_VALUE else section[value_at:value_end]
        record = Record(at, timestamp, key, value, headers_of(section, value_end, end))
        yield dumps({"partition": partition, **shown(record, format_)}, option=newline)


# Event ids of a topic stream contain every partition and must fit into a request head.
TOPIC_STREAM_PARTITIONS_MAX = 1_000


@asynccontextmanager
async def whole_topic(
    client: ApiClients, settings: GroupConsumerConfig, positions: TopicPositions, offsets: Sequence[int]
) -> AsyncIterator[GroupConsumer]:
    (topic,) = settings.topics
    places = {(topic, partition): offset for partition, offset in enumerate(offsets)}
    async with client.consumers.joined(settings, places) as member:
        growing = asyncio.create_task(_grow(client, member, topic, positions))
        try:
            yield member
        finally:
            growing.cancel()
            await asyncio.gather(growing, return_exceptions=True)


async def _grow(client: ApiClients, member: GroupConsumer, topic: str, positions: TopicPositions) -> None:
    while True:
        await asyncio.sleep(TOPIC_TRUSTED_S)
        with suppress(BrokerUnreachable, KafkaApiError, UnknownOutcomeError):  # retried at the next refresh
            count = len((await client.cluster.topic(topic)).partitions)
            if count > TOPIC_STREAM_PARTITIONS_MAX:
                member.fail(too_many_partitions(topic, count))
                return
            await _add_partitions(client, member, topic, positions, count)


def too_many_partitions(topic: str, count: int) -> Problem:
    return Problem(
        422,
        f"{topic} has {count:,} partitions; a stream without a group reads {TOPIC_STREAM_PARTITIONS_MAX:,} at most: "
        "use /groups/{group}/stream",
    )


async def _add_partitions(
    client: ApiClients, member: GroupConsumer, topic: str, positions: TopicPositions, count: int
) -> None:
    """Adds new partitions from their log start: they are younger than the stream."""
    added = [(topic, partition) for partition in range(len(positions), count)]
    if added:
        found = await offsets_of(client.cluster, added, EARLIEST, committed_only=False)
        positions.add([found[place] for place in added])
        member.add(found)
