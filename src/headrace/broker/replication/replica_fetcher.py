"""Replica fetcher: replicates all partitions that this broker follows from one leader, over one connection.

A fetch offset acknowledges every record below it. Therefore each response is appended, and flushed if the topic's
flush policy requires it, before the next request is sent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.replica.partition import Partition
from headrace.broker.replication.follower_log import (
    Diverged,
    Expected,
    Unconfirmed,
    append_run,
    check_history,
    cut,
    learn,
    make_place,
    verified_batches,
)
from headrace.broker.replication.replication_quota_manager import ReplicationQuotaManager
from headrace.client.aio.broker_connection import ConnectionLost, Peer
from headrace.core.fetch_session_handler import FetchSessionHandler
from headrace.core.image.deltas import PartitionsChanged
from headrace.core.replica.follower_truncation import EpochEndOffset
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.model.ids import NO_EPOCH
from headrace.protocol.messages.replica_fetch import (
    Fetched,
    FetchedPartition,
    ReplicaFetch,
    WantedPartition,
    decode_response,
    encode_request,
)

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

Key = tuple[UUID, int]
Connect = Callable[[int], Awaitable[Peer]]

# Pause after an error. The leader may not have received its election yet, which takes milliseconds, or it may be gone
# for good.
REFUSED_PAUSE_S = 0.02
REFUSED_PAUSE_S_MAX = 1.0
PATIENCE_MS_MIN = 20  # a shorter wait at the leader is not worth a round trip
# Maximum fetched per partition while a replica is catching up. Large enough to keep disk and network mostly busy;
# verifying and writing it delays other requests by a few milliseconds.
BULK_BYTES_MAX = 4 * 1024 * 1024
YIELD_BYTES = 256 * 1024
CLIENT_ID = "replica"


class PartitionFetchState:
    """Fetch state of a partition: the next request, and the backoff after an error."""

    __slots__ = (
        "_bytes_min",
        "_unconfirmed",
        "_wanted",
        "_wanted_for",
        "bytes_max",
        "error",
        "not_before_s",
        "partition",
        "pause_s",
    )

    def __init__(self, partition: Partition, bytes_max: int) -> None:
        self.partition = partition
        self.pause_s = 0.0
        self.not_before_s = 0.0
        self.error: type[HeadraceError] | None = None  # of the last append, if it failed
        self._bytes_min = self.bytes_max = bytes_max
        self._wanted: WantedPartition | None = None
        self._wanted_for = (0, 0, 0, 0)
        self._unconfirmed: tuple[int, int] | None = None  # leader epoch and fetch offset that the leader has to confirm

    @property
    def can_be_fetched(self) -> bool:
        """False while the log is offline or corrupt: a fetch offset would acknowledge records that it does not have."""
        return self.partition.failure is None and self.partition.refetch_from_epoch is None

    def wanted(self) -> WantedPartition:
        """Returns the partition's part of the next fetch request. Cached, because it rarely changes."""
        partition, log = self.partition, self.partition.log
        end, start = log.log_end_offset, log.log_start_offset
        place = (partition.leader_epoch, end, start, self.bytes_max)
        if self._wanted is None or place != self._wanted_for:
            last_epoch = log.epochs.epoch_of(end - 1) if end > start else -1
            self._wanted = WantedPartition(partition.leader_epoch, end, last_epoch, start, self.bytes_max)
            self._wanted_for = place
        return self._wanted

    def expected(self) -> Expected:
        """Returns what the response that has just arrived must contain."""
        partition, log = self.partition, self.partition.log
        end, start = log.log_end_offset, log.log_start_offset
        epoch = log.epochs.epoch_of(end - 1) if end > start else NO_EPOCH
        place = (partition.leader_epoch, end)
        return Expected(end, epoch, partition.leader_epoch, is_confirmed=place == self._unconfirmed)

    def leave_to_leader(self) -> None:
        """Fetches the same offset again, so that the leader confirms it, and as little as possible."""
        self._unconfirmed = (self.partition.leader_epoch, self.partition.log_end_offset)
        self.bytes_max = self._bytes_min

    def got(self, count: int) -> None:
        """Adapts the fetch size: a full response doubles it, and a response below the minimum size resets it."""
        if count >= self.bytes_max:
            self.bytes_max = max(min(2 * self.bytes_max, BULK_BYTES_MAX), self._bytes_min)
        elif count < self._bytes_min:
            self.bytes_max = self._bytes_min


class ReplicaFetcher:
    def __init__(self, broker: "Broker", leader: int, connect: Connect, throttles: ReplicationQuotaManager) -> None:
        settings = broker.settings
        self._broker = broker
        self._clock = broker.clock
        self._loop = asyncio.get_running_loop()
        self._leader = leader
        self._connect = connect
        self._throttles = throttles
        self._followed: dict[Key, PartitionFetchState] = {}
        self._changed = asyncio.Event()
        self._session = FetchSessionHandler()
        self._peer: Peer | None = None
        self._pause_s = 0.0
        self._wait_ms = settings.integer("replica.fetch.wait.max.ms")
        self._bytes_min = settings.integer("replica.fetch.min.bytes")
        self._bytes_max = settings.integer("replica.fetch.response.max.bytes")
        self._partition_bytes_max = settings.integer("replica.fetch.max.bytes")
        self._timeout_s = settings.integer("replica.socket.timeout.ms") / 1000
        self._task = asyncio.create_task(self._run(), name=f"fetch from broker {leader}")

    # Partitions

    def add(self, partition: Partition) -> None:
        self._followed[(partition.topic_id, partition.index)] = PartitionFetchState(
            partition, self._partition_bytes_max
        )
        self.look_again()

    def drop(self, key: Key) -> None:
        """Removes the partition. A response in flight ignores it."""
        self._followed.pop(key, None)

    def holds(self, partition: Partition) -> bool:
        followed = self._followed.get((partition.topic_id, partition.index))
        return followed is not None and followed.partition is partition

    @property
    def is_idle(self) -> bool:
        return not self._followed

    def look_again(self) -> None:
        """Closes the connection, so that a fetch waiting at the leader does not delay a new partition."""
        self._changed.set()
        self._disconnect()

    async def stop(self) -> None:
        self._task.cancel()
        self._disconnect()
        await asyncio.gather(self._task, return_exceptions=True)

    # Fetch loop

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
                self._pause_s = 0.0
            except ConnectionLost as error:
                if not self._changed.is_set():  # otherwise `look_again` has closed the connection
                    log.info("broker %d: %s", self._leader, error)
                self._disconnect()
                await self._pause()
            except HeadraceError as error:
                log.warning("fetching from broker %d: %s", self._leader, error)
                self._disconnect()
                await self._pause()
            except Exception:
                log.exception("fetching from broker %d failed", self._leader)
                self._disconnect()
                await self._pause()

    async def _pause(self) -> None:
        if self._changed.is_set() and not self._pause_s:
            self._pause_s = REFUSED_PAUSE_S
            return  # `look_again` closed the connection: retry at once
        self._pause_s = min(max(2 * self._pause_s, REFUSED_PAUSE_S), REFUSED_PAUSE_S_MAX)
        await asyncio.sleep(self._pause_s)

    async def _round(self) -> None:
        self._changed.clear()
        await self._settle()
        wanted = self._wanted()
        if not wanted:
            await self._wait_for_work()
            return
        fetched = await self._fetch(wanted)
        if fetched.error == ErrorCode.STALE_BROKER_EPOCH:
            raise ConnectionLost("it has not received this broker's registration yet")
        if fetched.error:
            log.info("broker %d ends the fetch session: error %d", self._leader, fetched.error)
            self._session.forget()
            return
        self._session.answered(fetched.session_id)
        await self._take(fetched)

    async def _cut_damage(self, partition: Partition, due_epoch: int) -> None:
        """Truncates the corrupt part of the log. Call while no response is in flight that would be appended."""
        if partition.leader_epoch < due_epoch or partition.counts:
            return
        if not await self._broker.partitions.truncate_corruption(partition):
            return
        partition.refetch_from_epoch = None
        log.warning("Re-replicating %s from offset %d", partition, partition.log_end_offset)

    async def _settle(self) -> None:
        """Flushes records of an earlier role, because a fetch offset must not acknowledge unflushed records."""
        for followed in list(self._followed.values()):
            partition = followed.partition
            if partition.refetch_from_epoch is not None:
                await self._cut_damage(partition, partition.refetch_from_epoch)
            if partition.failure is None and partition.log.recovery_point < partition.log_end_offset:
                partition.request_flush()
                await partition.wait_until_flushed()

    def _wanted(self) -> dict[Key, WantedPartition]:
        now_s = self._loop.time()
        wanted: dict[Key, WantedPartition] = {}
        for key, followed in self._followed.items():
            partition = followed.partition
            followed.not_before_s = max(followed.not_before_s, now_s + self._throttles.wait_s(partition))
            if followed.not_before_s <= now_s and followed.can_be_fetched:
                wanted[key] = followed.wanted()
        return wanted

    async def _wait_for_work(self) -> None:
        due = [one.not_before_s for one in self._followed.values() if one.can_be_fetched]
        timeout = max(min(due) - self._loop.time(), 0.001) if due else None
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _fetch(self, wanted: dict[Key, WantedPartition]) -> Fetched:
        if self._peer is None:
            self._session.forget()
            self._peer = await self._connect(self._leader)
        news = self._session.news(wanted)
        request = ReplicaFetch(
            self._broker.node_id,
            self._broker.controller.broker_epoch,
            self._patience_ms(),
            self._bytes_min,
            self._bytes_max,
            *news,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                return decode_response(await self._peer.exchange(encode_request(request, 0, CLIENT_ID)))
        except TimeoutError:
            raise ConnectionLost(f"no response for {self._timeout_s:.0f} s") from None

    def _patience_ms(self) -> int:
        """Returns how long the leader may delay the response: until the backoff of another partition ends."""
        now_s = self._loop.time()
        due_s = [one.not_before_s - now_s for one in self._followed.values() if one.not_before_s > now_s]
        return min([self._wait_ms, *(max(int(1000 * wait_s), PATIENCE_MS_MIN) for wait_s in due_s)])

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    # Responses

    async def _take(self, fetched: Fetched) -> None:
        touched: list[Partition] = []
        for row in fetched.rows:
            followed = self._followed.get((row.topic_id, row.partition))
            if followed is None or followed.partition.failure is not None:
                continue
            try:
                await self._take_row(followed, row)
                touched.append(followed.partition)
                if len(row.records) >= YIELD_BYTES:
                    await asyncio.sleep(0)  # serves producers and consumers between two large appends
            except Diverged as error:
                await self._begin_again(followed, error)
            except HeadraceError as error:
                self._append_failed(followed, error)
        for partition in touched:
            if partition.failure is None:
                await partition.wait_until_flushed()

    async def _take_row(self, followed: PartitionFetchState, row: FetchedPartition) -> None:
        partition = followed.partition
        if partition.leader != self._leader:
            return  # the leader changed while the response was in flight
        if row.error == ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset > partition.log_end_offset:
            if followed.error is None:  # otherwise repeated until the batch at that offset can be appended
                log.warning("%s: the leader begins at %d; starting over from there", partition, row.log_start_offset)
            await self._broker.partitions.truncate_fully_and_start_at(partition, row.log_start_offset)
            return
        if row.error != ErrorCode.NONE:
            self._set_back(followed)
            return
        if row.diverging is not None:
            before = partition.log_end_offset, partition.log_start_offset
            await cut(self._broker.partitions, partition, EpochEndOffset(*row.diverging))
            if before == (partition.log_end_offset, partition.log_start_offset):
                self._set_back(followed)  # the next fetch would get the same response
            else:
                followed.pause_s = 0.0
            return
        if row.records:
            followed.got(len(row.records))
            self._throttles.copied(partition, len(row.records))
            if not await self._append(followed, row.records):
                return
        learn(partition, row.high_watermark, row.log_start_offset)
        followed.pause_s, followed.error = 0.0, None

    async def _append(self, followed: PartitionFetchState, records: memoryview) -> bool:
        """Appends run by run, and yields in between. Returns False if the partition has changed since.

        A batch that the leader must confirm first, and the batches behind it, are left to the next fetch.
        """
        partition = followed.partition
        epoch = partition.leader_epoch
        runs = verified_batches(records, followed.expected())
        try:
            for number, run in enumerate(runs):
                if number:
                    await asyncio.sleep(0)
                elif not await make_place(self._broker.partitions, partition, run.headers[0]):
                    return False
                if partition.leader_epoch != epoch or not self.holds(partition) or partition.failure is not None:
                    return False
                check_history(partition, run.headers[0])
                append_run(partition, run, self._clock.wall_ms())
        except Unconfirmed:
            followed.leave_to_leader()
        return True

    async def _begin_again(self, followed: PartitionFetchState, error: Diverged) -> None:
        """Keeps the files of a replica whose history diverges from the leader's, and replicates it from the leader.

        Not while the replica is in the ISR or ELR: the leader commits nothing without it then, and removes it soon.
        """
        partition = followed.partition
        topic = self._broker.image.topics.get(partition.topic)
        if partition.counts or topic is None or topic.topic_id != partition.topic_id:
            self._append_failed(followed, error)
            return
        log.critical(
            "%s: %s; keeping its directory as a stray and replicating it from broker %d",
            partition,
            error,
            self._leader,
        )
        self._broker.partitions.set_aside(partition)
        await self._broker.controller.deliver_again([PartitionsChanged(topic, ())])

    def _append_failed(self, followed: PartitionFetchState, error: HeadraceError) -> None:
        """Retries with an increasing backoff. Logs the first of equal errors: a full disk fails every append."""
        if followed.error is not type(error):
            followed.error = type(error)
            log.warning("%s cannot be copied from broker %d: %s", followed.partition, self._leader, error)
        self._set_back(followed)

    def _set_back(self, followed: PartitionFetchState) -> None:
        followed.pause_s = min(max(2 * followed.pause_s, REFUSED_PAUSE_S), REFUSED_PAUSE_S_MAX)
        followed.not_before_s = self._loop.time() + followed.pause_s
