"""Transaction verification (KIP-890): checks that a batch belongs to an open transaction before it is appended.

Without it, a delayed batch could open a transaction that no coordinator would ever end. Older clients have added the
partition with AddPartitionsToTxn; for clients with transaction protocol v2 the Produce request adds it. Once a
transaction is open in the partition, its later batches are appended without verification.
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

ABORTABLE_FROM = 11  # from this Produce version on, clients handle an abortable error by aborting the transaction
ADDING_VERSION = 2  # of `transaction.version`

Unknown = list[tuple[ProducerIdentity, TopicPartition]]


class Answered(NamedTuple):
    """A remote coordinator's result for a partition, and the producer's state in the partition at that time."""

    code: ErrorCode
    seen: tuple[int, int] | None


# Results of the coordinators that one request consulted. Only that request holds them: an append that never happens
# leaves none behind, and no other request can use them.
Answers = Mapping[tuple[ProducerIdentity, TopicPartition], Answered]


def refusal(code: ErrorCode) -> HeadraceError:
    """Returns the error that a coordinator on this broker would have raised."""
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
        """Whether the coordinator must be called before the append: to add the partition, or because it is remote."""
        return version >= ADDS_PARTITIONS_FROM or (
            self._broker.transactions.verifies and self._broker.transactions.elsewhere(transactional_id) is not None
        )

    # Clients that add partitions through Produce

    def unverified_partitions(self, request: ProduceRequest) -> Unknown:
        """Returns the partitions in which the request may begin to write in its transaction."""
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
            return None  # the append returns the error for this partition

    async def add(self, request: ProduceRequest, unknown: Unknown, version: int) -> Answers:
        """Adds the partitions to their transactions. Returns the results of a remote coordinator, for `check`.

        Errors of a coordinator on this broker are dropped here, because `check` calls it again.
        """
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
        """Returns one result for each partition; NOT_COORDINATOR if the coordinator returned none."""
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

    # Every transactional batch

    def check(
        self,
        partition: Partition,
        records: memoryview,
        transactional_id: str | None,
        version: int,
        answers: Answers | None = None,
    ) -> None:
        """Raises the error of the Produce response unless the producer's transaction contains the partition."""
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
    """Returns whether the producer has an open transaction, of the same epoch, in the partition."""
    entry = partition.log.producers.get(header.producer_id)
    if entry is None or entry.epoch != header.producer_epoch:
        return False
    return entry.txn_first_offset is not None


def _check_first_sequence(partition: Partition, header: BatchHeader) -> None:
    """Raises if the first batch of a producer without state in the partition does not start at sequence 0.

    With transaction protocol v2, each transaction has its own epoch, so its sequences start at 0. Another first
    sequence means that an earlier batch was lost. The state cannot have expired, because an open transaction keeps
    it.
    """
    if header.base_sequence > 0 and partition.log.producers.get(header.producer_id) is None:
        raise OutOfOrderSequence(
            f"Out of order sequence number for producer {header.producer_id} in {partition}: {header.base_sequence} "
            "(incoming seq. number), expected 0 because the producer has no state in this partition"
        )


def _as_produce_says(error: HeadraceError, version: int) -> HeadraceError:
    """Maps a coordinator's error to one that producers handle. Older producers handle fewer of them."""
    match error:
        case ProducerFenced():
            return InvalidProducerEpoch(str(error))
        case PartitionNotInTransaction() if version < ABORTABLE_FROM:
            return InvalidTransactionState(str(error))
        case ConcurrentTransactions() if version >= ADDS_PARTITIONS_FROM:
            return error
        case ConcurrentTransactions() | CoordinatorLoading() | CoordinatorNotAvailable() | NotCoordinator():
            return NotEnoughReplicas(str(error))  # the only error that every producer retries
    return error
