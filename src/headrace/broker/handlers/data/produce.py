"""Produce: appends every batch and responds when the requested acks are complete."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.handlers.data.delayed_produce import (
    DelayedProduce,
    DelayedProducePart,
    ProducePurgatory,
    Results,
    count_errors,
)
from headrace.broker.handlers.data.produce_error_cache import ProduceErrorCache
from headrace.broker.handlers.data.produce_fast_path import known_of
from headrace.broker.network.connection import Connection
from headrace.broker.network.response_queue import ResponseSlot
from headrace.broker.replica.log_validator import ValidatedBatch, admit, codec_of, needs_thread
from headrace.broker.replica.partition import ACKS_ALL, Partition
from headrace.config.values import LogConfig
from headrace.core.topic import INTERNAL_TOPICS
from headrace.model.errors import (
    ErrorCode,
    HeadraceError,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    NotLeader,
    ProtocolError,
    TopicDenied,
    TransactionalIdDenied,
    UnsupportedCompression,
)
from headrace.protocol.api import ApiKey
from headrace.protocol.frames import Parts, RequestHeader
from headrace.protocol.messages.produce import PartitionResult, ProduceRequest, decode_request, encode_response
from headrace.protocol.primitives import Reader
from headrace.protocol.produce_fast_path import ProduceTemplate
from headrace.records.batch import is_transactional
from headrace.security.authorization import Operation, ResourceType, access_for

if TYPE_CHECKING:
    from headrace.broker.coordinator.add_partitions_manager import AddPartitionsToTxnManager, Answers, Unknown
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

ZSTD = 4
ZSTD_FROM_VERSION = 7

WRITE_TOPIC = access_for(ApiKey.PRODUCE, ResourceType.TOPIC, Operation.WRITE)
WRITE_TRANSACTIONAL_ID = access_for(ApiKey.PRODUCE, ResourceType.TRANSACTIONAL_ID, Operation.WRITE)

AdmittedBatches = Mapping[int, ValidatedBatch | HeadraceError]
NONE_ADMITTED: AdmittedBatches = {}


class ProduceHandler:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.clock = broker.clock
        self.partitions = broker.partitions
        self.check_free_space = broker.check_free_space
        self.errors = broker.figures.errors[ApiKey.PRODUCE]
        self.figures = broker.figures.records
        self.durations = broker.figures.requests[ApiKey.PRODUCE]
        self.waits: ProducePurgatory = {}
        self._refusals = ProduceErrorCache()
        self._preparations: set[asyncio.Task[None]] = set()

    def __call__(self, connection: Connection, header: RequestHeader, reader: Reader) -> Parts | None:
        request = decode_request(reader, header.version)
        if request.acks not in (-1, 0, 1):
            results = self._all_refused(request, InvalidRequiredAcks(f"acks={request.acks}; use -1, 0 or 1"))
            return self._encode(header, results)
        if request.transactional_id is not None and not self._may_use(connection, request.transactional_id):
            denied = TransactionalIdDenied(f"{connection.principal} may not use {request.transactional_id}")
            return self._encode(header, self._all_refused(request, denied))
        unknown: Unknown | None = None
        if request.transactional_id is not None and self._guard.needs_verification(
            request.transactional_id, header.version
        ):
            unknown = self._guard.unverified_partitions(request)
        if unknown or self._takes_long(request):
            # The frame is valid until this returns. The connection reads no further request before the response.
            self._prepare_first(connection, header, _kept(request), unknown)
            return None
        parts = self._append_all(connection, header, request, None)
        if len(request.topics) == 1:
            known_of(self, connection).learn(reader.whole, header, request)
        return parts

    @cached_property
    def _guard(self) -> "AddPartitionsToTxnManager":
        """Imported at the first transaction, because most brokers start without any."""
        from headrace.broker.coordinator.add_partitions_manager import AddPartitionsToTxnManager

        return AddPartitionsToTxnManager(self._broker)

    def _takes_long(self, request: ProduceRequest) -> bool:
        return any(True for _ in self._batches_that_take_long(request))

    def _batches_that_take_long(self, request: ProduceRequest) -> Iterator[tuple[memoryview, LogConfig]]:
        for topic, partitions in request.topics:
            for index, records in partitions:
                partition = self.partitions.held(topic, index)
                if partition is not None and records and needs_thread(records, partition.log.config):
                    yield records, partition.log.config

    def _prepare_first(
        self, connection: Connection, header: RequestHeader, request: ProduceRequest, unknown: "Unknown | None"
    ) -> None:
        """Adds partitions to the transaction and validates large batches in a thread, then appends all batches."""
        reply = connection.reserve_last_slot()

        async def prepare_and_append() -> None:
            try:
                answers = await self._guard.add(request, unknown, header.version) if unknown else None
                long = list(self._batches_that_take_long(request))
                admitted = await self._admitted(long) if long else {}
                parts = self._append_all(connection, header, request, reply, admitted, answers)
            except ProtocolError as error:
                connection.close(str(error))
                return
            except Exception:
                log.exception("a Produce of %s failed", connection.client_host)
                connection.close("A request failed")
                return
            if parts is not None:
                reply.send(parts)

        task = asyncio.create_task(prepare_and_append())
        self._preparations.add(task)
        task.add_done_callback(self._preparations.discard)

    async def _admitted(self, batches: list[tuple[memoryview, LogConfig]]) -> AdmittedBatches:
        async with self.partitions.threads.admissions:
            return await asyncio.to_thread(_admit_all, batches, self.clock.wall_ms())

    def _append_all(
        self,
        connection: Connection,
        header: RequestHeader,
        request: ProduceRequest,
        reply: ResponseSlot | None,
        admitted: AdmittedBatches = NONE_ADMITTED,
        answers: "Answers | None" = None,
    ) -> Parts | None:
        """Returns the response, or None if it is deferred, to `reply` if a slot is reserved already.

        `answers` are the transaction coordinator's results of adding the request's partitions.
        """
        now_ms = self.clock.wall_ms()
        results: Results = []
        uncommitted: list[tuple[Partition, int]] = []
        for topic, partitions in request.topics:
            if not self.may_write(connection, topic):
                denied = TopicDenied(f"{connection.principal} may not write to {topic}")
                results.append((topic, [_refusal(index, denied) for index, _ in partitions]))
                continue
            rows = []
            for index, records in partitions:
                batch = admitted.get(id(records), records) if admitted else records
                rows.append(self._append(topic, index, batch, request, header.version, now_ms, uncommitted, answers))
            results.append((topic, rows))
        if request.acks == 0:
            return self._without_reply(results)
        if not uncommitted:
            return self._encode(header, results)
        wait = self._new_wait(
            reply or connection.reserve_slot_with_quick_ack(),
            header.version,
            header.correlation_id,
            results,
            request.timeout_ms,
        )
        for partition, offset in uncommitted:
            wait.wait_for(partition, offset)
        return None

    def _encode(self, header: RequestHeader, results: Results) -> Parts:
        count_errors(results, self.errors)
        return encode_response(header.version, header.correlation_id, results)

    def _new_wait(
        self, reply: ResponseSlot, version: int, correlation_id: int, results: Results, timeout_ms: int
    ) -> DelayedProduce:
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        wait = DelayedProduce(reply, version, correlation_id, results, deadline_ms, self.waits, self.errors)
        self.waits[wait] = None
        return wait

    def answer_when_committed(
        self,
        connection: Connection,
        place: ProduceTemplate,
        rows: Sequence[tuple[int, int, int, int]],
        partition: Partition,
        offset: int,
    ) -> None:
        """Responds to requests to one partition, each with a row of `ProduceTemplate.reply`, when the batches are
        committed.
        """
        reply = connection.reserve_slot_with_quick_ack()
        reply.requests = len(rows)
        deadline_ms = self.clock.monotonic_ms() + place.timeout_ms
        partition.wait_for_commit(offset, DelayedProducePart(reply, place, rows, deadline_ms, self.waits, self.errors))

    def _may_use(self, connection: Connection, transactional_id: str) -> bool:
        return self._broker.authorizer.allows(
            connection.principal, connection.client_host, WRITE_TRANSACTIONAL_ID, transactional_id
        )

    def may_write(self, connection: Connection, topic: str | UUID) -> bool:
        """Whether the client may write. An unknown topic id names no resource; it is rejected as unknown later."""
        name = self.partitions.name_of(topic)
        return name is None or self._broker.authorizer.allows(
            connection.principal, connection.client_host, WRITE_TOPIC, name
        )

    def _append(
        self,
        topic: str | UUID,
        index: int,
        records: memoryview | ValidatedBatch | HeadraceError | None,
        request: ProduceRequest,
        version: int,
        now_ms: int,
        uncommitted: list[tuple[Partition, int]],
        answers: "Answers | None",
    ) -> PartitionResult:
        """Returns the row of one partition. Each partition succeeds or fails on its own."""
        try:
            partition = self.partitions.leader(topic, index)
            if partition.topic in INTERNAL_TOPICS:
                raise InvalidTopic(f"{partition.topic} is written by brokers only")
            if not records:
                raise InvalidRecord("a Produce needs exactly one batch for a partition, this one has none")
            if isinstance(records, HeadraceError):
                raise records
            batch = records.batch if isinstance(records, ValidatedBatch) else records
            if version < ZSTD_FROM_VERSION and codec_of(batch) == ZSTD:
                raise UnsupportedCompression(f"zstd needs Produce v{ZSTD_FROM_VERSION} or later")
            if is_transactional(batch):
                self._guard.check(partition, batch, request.transactional_id, version, answers)
            self.check_free_space(len(batch))
            base_offset, next_offset, append_time_ms, committed = partition.append(records, request.acks, now_ms)
        except HeadraceError as error:
            return self._refused(topic, index, records, error)
        self.figures.took_in(next_offset - base_offset, len(batch))
        if request.acks == ACKS_ALL and not committed:
            uncommitted.append((partition, next_offset))
        return PartitionResult(index, ErrorCode.NONE, base_offset, append_time_ms, partition.log.log_start_offset)

    def _refused(
        self,
        topic: str | UUID,
        index: int,
        records: memoryview | ValidatedBatch | HeadraceError | None,
        error: HeadraceError,
    ) -> PartitionResult:
        batch = records.batch if isinstance(records, ValidatedBatch) else records
        if isinstance(batch, memoryview):
            error = self._refusals.told((topic, index), batch, error, self.clock.monotonic_ms())
        if isinstance(error, NotLeader):
            return PartitionResult(index, error.code, current_leader=self.partitions.current_leader(topic, index))
        return _refusal(index, error)

    @staticmethod
    def _all_refused(request: ProduceRequest, error: HeadraceError) -> Results:
        return [(topic, [_refusal(index, error) for index, _ in rows]) for topic, rows in request.topics]

    def _without_reply(self, results: Results) -> Parts:
        """Raises ProtocolError for errors: acks=0 has no response, so closing the connection is the only signal."""
        count_errors(results, self.errors)
        for topic, rows in results:
            for row in rows:
                if row.error != ErrorCode.NONE:
                    raise ProtocolError(f"a Produce with acks=0 failed for {topic}-{row.partition}: {row.message}")
        return ()

    def expire(self, now_ms: int) -> None:
        """Responds to produces whose timeout is over, and drops them from their partitions."""
        expired = dict.fromkeys(wait for wait in self.waits if wait.deadline_ms <= now_ms)
        if not expired:
            return
        for wait in expired:
            wait.expire()
        for partition in self.partitions.all():
            partition.waiters.forget(expired)

    async def close(self) -> None:
        """Cancels produces that are being prepared: none may append after this, because the logs are about to be
        closed.
        """
        preparations = list(self._preparations)
        for task in preparations:
            task.cancel()
        await asyncio.gather(*preparations, return_exceptions=True)


def _kept(request: ProduceRequest) -> ProduceRequest:
    """Returns the request with copies of its batches, for use after the frame has become invalid."""
    topics = [
        (topic, [(index, records and memoryview(bytearray(records))) for index, records in partitions])
        for topic, partitions in request.topics
    ]
    return request._replace(topics=topics)


def _admit_all(batches: Iterable[tuple[memoryview, LogConfig]], now_ms: int) -> AdmittedBatches:
    """Runs in a thread. Returns validated batches, or their errors, by the id of their bytes."""
    admitted: dict[int, ValidatedBatch | HeadraceError] = {}
    for records, config in batches:
        try:
            admitted[id(records)] = admit(records, config, now_ms)
        except HeadraceError as error:
            admitted[id(records)] = error
            # The traceback would keep the decompressed bytes alive until a garbage collection.
            error.__traceback__ = error.__cause__ = error.__context__ = None
    return admitted


def _refusal(index: int, error: HeadraceError) -> PartitionResult:
    """Not logged: the client receives the error, and one that fails a thousand times per second must not fill the
    disk.
    """
    record_errors = error.record_errors if isinstance(error, InvalidRecord) else ()
    return PartitionResult(index, error.code, record_errors=record_errors, message=str(error))
