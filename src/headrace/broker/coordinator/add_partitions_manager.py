"""Before a producer's first write of a transaction to a partition: does its coordinator know of that partition?

Without this a batch that was held up on its way could open a transaction that nobody will ever end (KIP-890). Older
clients have added the partition before; for newer ones the Produce itself adds it. Once a transaction is open in the
partition, later batches of it are let through without asking.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.broker.coordinator.errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from headrace.broker.coordinator.remote_requests import (
    RemoteCoordinatorError,
    add_partitions_at,
    producer_state_snapshot,
)
from headrace.broker.replica.partition import Partition
from headrace.core.transaction.errors import (
    ConcurrentTransactions,
    PartitionNotInTransaction,
    ProducerFenced,
)
from headrace.core.transaction.metadata import ProducerIdentity
from headrace.model.errors import (
    ErrorCode,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTransactionState,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    TransactionalIdDenied,
    UnknownTopic,
    UnknownTopicId,
)
from headrace.model.ids import TopicPartition
from headrace.protocol.messages.produce import ADDS_PARTITIONS_FROM, ProduceRequest
from headrace.records.batch import BatchHeader, is_transactional, parse_header

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

ABORTABLE_FROM = 11  # clients of this version of Produce know an error that aborting the transaction heals
ADDING_VERSION = 2  # of `transaction.version`

Unknown = list[tuple[ProducerIdentity, TopicPartition]]


class Answered(NamedTuple):
    """What a coordinator elsewhere has said about a partition, and what the partition knew of the producer then."""

    code: ErrorCode
    seen: tuple[int, int] | None


# Of the coordinators that one request asked. Held by that request only: an append that never comes leaves none behind,
# and no other request can use an answer that is not its own.
Answers = Mapping[tuple[ProducerIdentity, TopicPartition], Answered]


def refusal(code: ErrorCode) -> HeadraceError:
    """The error that a coordinator here would have raised."""
    match code:
        case ErrorCode.PRODUCER_FENCED | ErrorCode.INVALID_PRODUCER_EPOCH:
            return ProducerFenced("a newer producer has taken over the transactional id")
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return ConcurrentTransactions("the transaction before is being completed")
        case ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return NotCoordinator("the transaction coordinator is not available")
        case ErrorCode.TRANSACTION_ABORTABLE | ErrorCode.INVALID_TXN_STATE:
            return PartitionNotInTransaction("the transaction coordinator has no open transaction with this partition")
    return RemoteCoordinatorError(code, f"the transaction coordinator rejected the verification: {code.name}")


class AddPartitionsToTxnManager:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._partitions = broker.partitions

    def needs_verification(self, transactional_id: str, version: int) -> bool:
        """Whether the coordinator is to be asked before anything is appended: it is to add, or it is elsewhere."""
        return version >= ADDS_PARTITIONS_FROM or (
            self._broker.transactions.verifies and self._broker.transactions.elsewhere(transactional_id) is not None
        )

    # For clients that leave it to the Produce

    def unverified_partitions(self, request: ProduceRequest) -> Unknown:
        """Where the request begins to write in its transaction."""
        return [
            (_owner(header), TopicPartition(partition.topic, partition.index))
            for partition, header in self._transactional(request)
            if not _is_open(partition, header)
        ]

    def _transactional(self, request: ProduceRequest) -> Iterator[tuple[Partition, BatchHeader]]:
        for topic, rows in request.topics:
            for index, records in rows:
                if records is not None and is_transactional(records):
                    partition = self._find(topic, index)
                    if partition is not None:
                        yield partition, parse_header(records)

    def _find(self, topic: str | UUID, index: int) -> Partition | None:
        try:
            return self._partitions.leader(topic, index)
        except (NotLeader, UnknownTopic, UnknownTopicId):
            return None  # the append says so, in its row

    async def add(self, request: ProduceRequest, unknown: Unknown, version: int) -> Answers:
        """Returns what a coordinator elsewhere said, for `check`. One on this broker is asked again by `check`."""
        assert request.transactional_id is not None, "only a transaction has partitions to add"
        by_owner: dict[ProducerIdentity, list[TopicPartition]] = {}
        for owner, place in unknown:
            by_owner.setdefault(owner, []).append(place)
        elsewhere = self._broker.transactions.elsewhere(request.transactional_id)
        answers: dict[tuple[ProducerIdentity, TopicPartition], Answered] = {}
        for owner, places in by_owner.items():
            if elsewhere is not None:
                answers |= await self._ask(elsewhere, request.transactional_id, owner, places, version)
                continue
            try:
                await self._broker.transactions.add_partitions(
                    request.transactional_id, owner, places, client_version=ADDING_VERSION
                )
            except HeadraceError:
                continue
        return answers

    async def _ask(
        self,
        coordinator: int,
        transactional_id: str,
        owner: ProducerIdentity,
        places: list[TopicPartition],
        version: int,
    ) -> Answers:
        """One answer for each partition; NOT_COORDINATOR where there is none."""
        seen = {place: producer_state_snapshot(self._broker, owner, place) for place in places}
        codes: dict[TopicPartition, ErrorCode] = {}
        try:
            codes = await add_partitions_at(
                self._broker,
                coordinator,
                transactional_id,
                owner,
                places,
                verify_only=version < ADDS_PARTITIONS_FROM,
            )
        except HeadraceError as error:
            log.info("Broker %d did not verify the transaction of %s: %s", coordinator, transactional_id, error)
        return {(owner, place): Answered(codes.get(place, ErrorCode.NOT_COORDINATOR), seen[place]) for place in places}

    def _check_answer(self, answers: Answers, owner: ProducerIdentity, place: TopicPartition) -> None:
        answered = answers.get((owner, place))
        if answered is None or answered.seen != producer_state_snapshot(self._broker, owner, place):
            raise NotCoordinator("the transaction may have ended since it was verified")
        if answered.code != ErrorCode.NONE:
            raise refusal(answered.code)

    # For every batch of a transaction

    def check(
        self,
        partition: Partition,
        records: memoryview,
        transactional_id: str | None,
        version: int,
        answers: Answers | None = None,
    ) -> None:
        """Raise what the producer is to be told, unless its transaction covers the partition."""
        if transactional_id is None:
            raise TransactionalIdDenied("a transactional batch needs the transactional id in the request")
        header = parse_header(records)
        if version >= ADDS_PARTITIONS_FROM:
            _check_first_sequence(partition, header)
        if not self._broker.transactions.verifies or _is_open(partition, header):
            return
        owner, place = _owner(header), TopicPartition(partition.topic, partition.index)
        try:
            if self._broker.transactions.elsewhere(transactional_id) is not None:
                self._check_answer(answers or {}, owner, place)
            else:
                self._broker.transactions.check_partition(transactional_id, owner, place)
        except HeadraceError as error:
            raise _as_produce_says(error, version) from error


def _owner(header: BatchHeader) -> ProducerIdentity:
    return ProducerIdentity(header.producer_id, header.producer_epoch)


def _is_open(partition: Partition, header: BatchHeader) -> bool:
    """Whether this producer has written to the partition in the transaction that it has open, or sends that again."""
    entry = partition.log.producers.get(header.producer_id)
    if entry is None or entry.epoch != header.producer_epoch:
        return False
    return entry.txn_first_offset is not None


def _check_first_sequence(partition: Partition, header: BatchHeader) -> None:
    """With transactions v2 the sequences of every transaction start at 0, because each has an epoch of its own.

    So a partition without state of the producer must receive 0 first: another sequence means that an earlier batch was
    lost. The state cannot have expired, because an open transaction keeps it.
    """
    if header.base_sequence > 0 and partition.log.producers.get(header.producer_id) is None:
        raise OutOfOrderSequence(
            f"Out of order sequence number for producer {header.producer_id} in {partition}: {header.base_sequence} "
            "(incoming seq. number), expected 0 because the producer has no state in this partition"
        )


def _as_produce_says(error: HeadraceError, version: int) -> HeadraceError:
    """Producers know fewer codes than the clients of a coordinator, and older ones fewer still."""
    match error:
        case ProducerFenced():
            return InvalidProducerEpoch(str(error))
        case PartitionNotInTransaction() if version < ABORTABLE_FROM:
            return InvalidTransactionState(str(error))
        case ConcurrentTransactions() if version >= ADDS_PARTITIONS_FROM:
            return error
        case ConcurrentTransactions() | CoordinatorLoading() | CoordinatorNotAvailable() | NotCoordinator():
            return NotEnoughReplicas(str(error))  # the one code that makes every producer try again
    return error
