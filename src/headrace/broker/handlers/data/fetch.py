"""Fetch: responds with references to batches in their files, at once or when enough records have arrived.

A Fetch that finds fewer bytes than its minimum becomes a delayed operation of its partitions. Their high watermarks
or its timer complete it; nothing polls.
"""

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.handlers.data.follower_fetch import ReplicaReads, Wanteds
from headrace.broker.network.connection import Connection
from headrace.broker.network.response_queue import ResponseSlot
from headrace.broker.replica.partition import Partition
from headrace.broker.runtime.event_loop import iteration_end_scheduler
from headrace.config.keys.broker import RACK_SELECTOR
from headrace.core.fetch_session import FetchSession, FetchSessionCache
from headrace.core.replica.replica_selector import READ_HERE, select_replica
from headrace.model.errors import ErrorCode, HeadraceError, NotLeader, OffsetOutOfRange, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.protocol.frames import Parts, RequestHeader
from headrace.protocol.messages.fetch import (
    TOPIC_IDS_FROM,
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    PartitionRow,
    decode_request,
    encode_response,
)
from headrace.protocol.primitives import Reader
from headrace.security.authorization import Operation, ResourceType, access_for
from headrace.storage.log_read import CHECK_BYTES_MAX
from headrace.storage.log_types import FileRecords

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

READ_TOPIC = access_for(ApiKey.FETCH, ResourceType.TOPIC, Operation.READ)

TopicKey = str | UUID
Rows = list[tuple[TopicKey, PartitionRow]]

# Upper bound of the client's max wait: limits how long an abandoned fetch is kept.
WAIT_MS_MAX = 5 * 60 * 1000
SESSION_ID_MAX = 2**31 - 1


class DelayedFetchRequest:
    """One Fetch until its response."""

    __slots__ = (
        "_connection",
        "_handler",
        "_header",
        "_parked_on",
        "_reply",
        "_request",
        "_retry_is_due",
        "_session",
        "_wanted",
    )

    def __init__(
        self,
        handler: "FetchHandler",
        connection: Connection,
        header: RequestHeader,
        request: FetchRequest,
        session: FetchSession | None,
        wanted: Wanteds,
    ) -> None:
        self._handler = handler
        self._connection = connection
        self._header, self._request, self._session, self._wanted = header, request, session, wanted
        self._reply: ResponseSlot | None = None
        self._parked_on: list[Partition] = []
        self._retry_is_due = False

    def park(self, partitions: list[Partition]) -> None:
        self._reply = self._connection.reserve_slot()
        self._parked_on = partitions
        is_replica = self._request.replica_id >= 0
        for partition in partitions:
            (partition.waiters.replica_fetches if is_replica else partition.waiters.fetches)[self] = None
        self._connection.parked.add(self, min(self._request.max_wait_ms, WAIT_MS_MAX) / 1000)

    def wake(self) -> None:
        """Schedules a retry after a change of one of the partitions; several changes in one event-loop iteration
        cause one.
        """
        if not self._retry_is_due:
            self._retry_is_due = True
            self._handler.call_at_iteration_end(self._retry)

    def _retry(self) -> None:
        self._retry_is_due = False
        if self._parked_on:  # otherwise the response has been sent since
            self._look(must_answer=False)

    def give_up(self) -> None:
        self._look(must_answer=True)

    def _look(self, *, must_answer: bool) -> None:
        try:
            rows, size, failed, _ = self._handler.look_again(
                self._connection, self._request, self._session, self._wanted
            )
            if must_answer or failed or size >= self._request.bytes_min:
                self._handler.count(self._request, size)
                self._answer(rows)
        except Exception:
            log.exception("a parked fetch of %s failed", self._connection.client_host)
            self._connection.close("A request failed")

    def _answer(self, rows: Rows) -> None:
        reply = self._reply
        self.cancel()
        assert reply is not None, "only a parked fetch is answered later"
        reply.send(self._handler.encode(self._header, self._session, rows))

    def cancel(self) -> None:
        """Removes the fetch from every queue; sends no response."""
        for partition in self._parked_on:
            partition.waiters.fetches.pop(self, None)
            partition.waiters.replica_fetches.pop(self, None)
        self._parked_on = []
        self._connection.parked.discard(self)


class FetchHandler:
    def __init__(self, broker: "Broker", sessions: FetchSessionCache) -> None:
        self.call_at_iteration_end = iteration_end_scheduler(asyncio.get_running_loop())
        self._broker = broker
        self._clock = broker.clock
        self._partitions = broker.partitions
        self._figures = broker.figures
        self._errors = broker.figures.errors[ApiKey.FETCH]
        self._replicas = ReplicaReads(broker)
        self._reads_closest = broker.settings.config("replica.selector.class") == RACK_SELECTOR
        self._authorizer = broker.authorizer
        self._sessions = sessions
        self._bytes_max = broker.settings.integer("fetch.max.bytes")

    def __call__(self, connection: Connection, header: RequestHeader, reader: Reader) -> Parts | None:
        request = decode_request(reader, header.version)
        if request.replica_id >= 0:
            refusal = self._replicas.check(connection, request)  # first: only replicas get the session of a replica
            if refusal is not None:
                return self._refused(header, refusal)
        try:
            session = self._sessions.begin(
                request,
                self._clock.monotonic_ms(),
                lambda: random.randint(1, SESSION_ID_MAX),  # an id, not a secret
                uses_topic_ids=header.version >= TOPIC_IDS_FROM,
            )
        except HeadraceError as error:
            return self._refused(header, error.code)
        idle: list[Partition] = []
        if request.replica_id >= 0:
            if session is None:
                wanted = _all_wanted(request)
            else:
                wanted, idle = self._replicas.with_news(session, request)
                self._replicas.note_idle(request, idle)
            self._replicas.note_progress(request, wanted)
        else:
            wanted = _all_wanted(request) if session is None else session.wanted()
        rows, size, failed, partitions = self.gather(connection, request, session, wanted)
        partitions += idle
        if size >= request.bytes_min or failed or request.max_wait_ms <= 0 or not partitions:
            self.count(request, size)
            return self.encode(header, session, rows)
        DelayedFetchRequest(self, connection, header, request, session, wanted).park(partitions)
        return None

    def look_again(
        self, connection: Connection, request: FetchRequest, session: FetchSession | None, wanted: Wanteds
    ) -> tuple[Rows, int, bool, list[Partition]]:
        """Reads again for a fetch that has waited."""
        if request.replica_id >= 0 and session is not None:
            wanted, _ = self._replicas.with_news(session, request)
        return self.gather(connection, request, session, wanted)

    def count(self, request: FetchRequest, size: int) -> None:
        """Counts the record bytes of a response that is about to be sent."""
        if request.replica_id >= 0:
            self._figures.records.replica_bytes_out += size
        else:
            self._figures.records.bytes_out += size

    def gather(
        self, connection: Connection, request: FetchRequest, session: FetchSession | None, wanted: Wanteds
    ) -> tuple[Rows, int, bool, list[Partition]]:
        """Returns a row for each partition, their bytes, whether one failed, and the partitions that this broker
        serves.
        """
        rows: Rows = []
        partitions: list[Partition] = []
        room = min(request.bytes_max, self._bytes_max)
        size, checked, failed = 0, 0, False
        for topic, one in wanted:
            try:
                if request.replica_id >= 0:
                    partition = self._partitions.leader(topic, one.partition)
                    partitions.append(partition)
                    row = self._replicas.read(partition, request.replica_id, one, room - size, is_first=not size)
                else:
                    self._check_may_read(connection, topic)
                    partition = self._partitions.leader(topic, one.partition)
                    partitions.append(partition)
                    row = self._read(partition, one, request, room - size, is_first=not size)
            except NotLeader as error:
                leader = self._partitions.current_leader(topic, one.partition)
                row, failed = PartitionRow(one.partition, error.code, current_leader=leader), True
            except HeadraceError as error:
                row, failed = PartitionRow(one.partition, error.code), True
            except Exception:
                log.exception("Fetch of %s-%d failed; the response has the other partitions", topic, one.partition)
                row, failed = PartitionRow(one.partition, ErrorCode.UNKNOWN_SERVER_ERROR), True
            else:
                if isinstance(row.records, FileRecords):
                    size += row.records.length
                    checked += row.records.checked_bytes
                    if checked >= CHECK_BYTES_MAX:
                        room = size  # the next fetch reads the other partitions
                if row.error != ErrorCode.NONE or row.diverging is not None:
                    failed = True
                elif session is not None and request.replica_id >= 0:
                    self._replicas.answered(session, topic, one)
                # a preferred replica is returned without waiting, too
                failed = failed or row.preferred_replica != READ_HERE
            rows.append((topic, row))
        return rows, size, failed, partitions

    def _check_may_read(self, connection: Connection, topic: TopicKey) -> None:
        name = self._partitions.name_of(topic)
        if name is not None and not self._authorizer.allows(
            connection.principal, connection.client_host, READ_TOPIC, name
        ):
            raise TopicDenied(f"{connection.principal} may not read {topic}")

    def _records(self, partition: Partition, offset: int, bytes_max: int, read_committed: bool) -> FileRecords | None:
        try:
            return partition.read(offset, bytes_max, read_committed=read_committed)
        except OffsetOutOfRange:
            membership = self._broker.membership
            if offset > partition.log_end_offset and membership is not None and membership.may_be_fenced:
                # The consumer may have read records of a newer leader: it must not reset its offset because of a stale
                # one.
                raise NotLeader(f"{partition} may have another leader by now") from None
            raise

    def _read(
        self, partition: Partition, wanted: FetchPartition, request: FetchRequest, room: int, *, is_first: bool
    ) -> PartitionRow:
        if request.rack and self._reads_closest:
            elsewhere = self._check_closest(partition, wanted, request.rack)
            if elsewhere != READ_HERE:
                return _row(partition, None, None)._replace(preferred_replica=elsewhere)
        else:
            partition.check_leader(wanted.current_leader_epoch)
        # The first batch is sent even if it exceeds the client's limit; otherwise no consumer could read it.
        records = None
        if room > 0 or is_first:
            bytes_max = min(wanted.bytes_max, room)
            records = self._records(partition, wanted.fetch_offset, bytes_max, request.read_committed)
            if records is not None and records.length > bytes_max and not is_first:
                records = None
        aborted: tuple[AbortedTransaction, ...] | None = None
        if request.read_committed:
            aborted = partition.aborted_transactions(wanted.fetch_offset, records)
        return _row(partition, aborted, records)

    def _check_closest(self, partition: Partition, wanted: FetchPartition, rack: str) -> int:
        """Returns READ_HERE on the leader or an up-to-date follower; otherwise the broker to fetch from (KIP-392)."""
        leadership = partition.leadership
        if leadership is None:
            self._check_copy(partition, wanted)
            return READ_HERE
        partition.check_leader(wanted.current_leader_epoch)
        racks = {one.node_id: one.rack for one in self._broker.image.live_brokers().values()}
        return select_replica(rack, self._broker.settings.rack, racks, leadership, wanted.fetch_offset)

    def _check_copy(self, partition: Partition, wanted: FetchPartition) -> None:
        partition.check_follower_read(wanted.current_leader_epoch)
        membership = self._broker.membership
        if membership is None or membership.may_be_fenced or wanted.fetch_offset > partition.log_end_offset:
            raise NotLeader(f"{partition} is not up to date on this broker: fetch from its leader")

    def _refused(self, header: RequestHeader, error: ErrorCode) -> Parts:
        self._errors[error] += 1
        return encode_response(header.version, header.correlation_id, (), error=error)

    def encode(self, header: RequestHeader, session: FetchSession | None, rows: Rows) -> Parts:
        session_id = 0
        if session is not None:
            session_id = session.session_id
            rows = session.news(iter(rows))
        for _, row in rows:
            if row.error:
                self._errors[row.error] += 1
        return encode_response(header.version, header.correlation_id, list(_by_topic(rows)), session_id=session_id)


def _row(
    partition: Partition, aborted: tuple[AbortedTransaction, ...] | None, records: FileRecords | None
) -> PartitionRow:
    return PartitionRow(
        partition.index,
        ErrorCode.NONE,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
        aborted,
        records=records,
    )


def _all_wanted(request: FetchRequest) -> list[tuple[TopicKey, FetchPartition]]:
    return [(topic, partition) for topic, partitions in request.topics for partition in partitions]


def _by_topic(rows: Rows) -> Iterator[tuple[TopicKey, list[PartitionRow]]]:
    """Groups rows by topic; each topic occurs once."""
    grouped: dict[TopicKey, list[PartitionRow]] = {}
    for topic, row in rows:
        grouped.setdefault(topic, []).append(row)
    yield from grouped.items()
