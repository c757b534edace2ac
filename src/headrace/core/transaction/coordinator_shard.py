"""Transaction coordinator: state machine of one partition of `__transaction_state`. Only `apply` changes state.

Writes no markers: it records in the log that a transaction is prepared. The coordinator runtime then writes markers
to every partition and calls `markers_written`. Producer ids are arguments; a decision that needs one and has none
raises ProducerIdNeeded. No I/O.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace.core.coordinator import Answer, CoordinatorRecord, CoordinatorTime, Decision, RequestId, Timer
from headrace.core.transaction import log_records
from headrace.core.transaction.errors import (
    ConcurrentTransactions,
    InvalidTransactionTimeout,
    PartitionNotInTransaction,
    ProducerFenced,
    TransactionalIdNotFound,
    UnknownTransactionalProducer,
)
from headrace.core.transaction.metadata import (
    AT_REST,
    NEXT,
    PREPARED,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from headrace.core.transaction.transitions import end, take_over
from headrace.model.errors import RequestError
from headrace.model.ids import TopicPartition

_TIMEOUT = "timeout "
_FORGET_IDS = "forget unused ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    timeout_ms_max: int
    id_expiration_ms: int
    id_expiration_check_ms: int


class TransactionalIdExpired(NamedTuple):
    """The transactional id has expired."""

    transactional_id: str


TransactionFact = TransactionMetadata | TransactionalIdExpired
TransactionDecision = Decision[TransactionFact]


class TransactionCoordinatorShard:
    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self.transactions: dict[str, TransactionMetadata] = {}

    # Requests

    def init_producer_id(
        self,
        ticket: RequestId,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        *,
        fresh_id: int | None,
        now_ms: CoordinatorTime,
    ) -> TransactionDecision:
        """Handles InitProducerId. Returns an epoch that fences the previous producer with this transactional id."""
        if not 0 < timeout_ms <= self._config.timeout_ms_max:
            raise InvalidTransactionTimeout(
                f"a transaction timeout of {timeout_ms} ms; at most {self._config.timeout_ms_max} ms are allowed "
                "(transaction.max.timeout.ms)"
            )
        known = self.transactions.get(transactional_id)
        taken = take_over(known, transactional_id, timeout_ms, expected, fresh_id, now_ms.wall_ms)
        if taken.state is TransactionState.PREPARE_ABORT:
            busy = ConcurrentTransactions("the transaction that was open is being aborted")
            return self._step(taken, Answer(ticket, busy), now_ms)
        return self._step(taken, Answer(ticket, taken.owner), now_ms)

    def add_partitions(
        self,
        ticket: RequestId,
        transactional_id: str,
        owner: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int,
        now_ms: CoordinatorTime,
    ) -> TransactionDecision:
        """Adds partitions to the transaction; the first ones begin it."""
        transaction = self._owned(transactional_id, owner)
        wanted = frozenset(partitions)
        answer = Answer(ticket, None)
        if transaction.state is TransactionState.ONGOING and wanted <= transaction.partitions:
            return Decision(answers=(answer,))
        return self._step(transaction.with_partitions(wanted, client_version, now_ms.wall_ms), answer, now_ms)

    def check_partition(self, transactional_id: str, owner: ProducerIdentity, partition: TopicPartition) -> None:
        """Raises unless the partition is in the producer's open transaction.

        Called before its first write to the partition.
        """
        if partition not in self._owned(transactional_id, owner).partitions:
            raise PartitionNotInTransaction(f"{partition} was not added to the transaction of {transactional_id!r}")

    def end(
        self,
        ticket: RequestId,
        transactional_id: str,
        owner: ProducerIdentity,
        *,
        commit: bool,
        client_version: int,
        fresh_id: int | None,
        now_ms: CoordinatorTime,
    ) -> TransactionDecision:
        transaction = self._known(transactional_id)
        prepared = end(
            transaction,
            owner,
            commit=commit,
            client_version=client_version,
            fresh_id=fresh_id,
            now_ms=now_ms.wall_ms,
        )
        if prepared is None:  # a retry of a request that has been carried out already
            return Decision(answers=(Answer(ticket, transaction.owner),))
        return self._step(prepared, Answer(ticket, prepared.completed(now_ms.wall_ms).owner), now_ms)

    def markers_written(self, prepared: TransactionMetadata, now_ms: CoordinatorTime) -> TransactionDecision:
        """Completes the transaction once every partition has its marker."""
        transaction = self.transactions.get(prepared.transactional_id)
        if transaction != prepared:
            return Decision()
        return self._step(transaction.completed(now_ms.wall_ms), None, now_ms)

    def loaded(self, now_ms: CoordinatorTime) -> TransactionDecision:
        timers = [
            self._timeout(one, now_ms) for one in self.transactions.values() if one.state is TransactionState.ONGOING
        ]
        return Decision(timers=(*timers, self._next_check(now_ms)))

    def expire(self, timer: str, now_ms: CoordinatorTime) -> TransactionDecision:
        if timer == _FORGET_IDS:
            return self._forget_unused(now_ms)
        transaction = self.transactions.get(timer.removeprefix(_TIMEOUT))
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            return Decision()
        return self._step(transaction.fenced(now_ms=now_ms.wall_ms), None, now_ms)

    def _forget_unused(self, now_ms: CoordinatorTime) -> TransactionDecision:
        oldest_ms = now_ms.wall_ms - self._config.id_expiration_ms
        unused = [
            TransactionalIdExpired(one.transactional_id)
            for one in self.transactions.values()
            if one.state in AT_REST and one.updated_ms <= oldest_ms
        ]
        return Decision(facts=unused, timers=(self._next_check(now_ms),), is_divisible=True)

    def _step(self, to: TransactionMetadata, answer: Answer | None, now_ms: CoordinatorTime) -> TransactionDecision:
        """Returns the decision to change a transactional id's state, with the timer for the new state."""
        before = self.transactions.get(to.transactional_id)
        assert before is None or to.state in NEXT[before.state], f"{before} cannot become {to}"
        timers: tuple[Timer, ...] = ()
        if to.state is TransactionState.ONGOING:
            if before is None or before.state is not TransactionState.ONGOING:
                timers = (self._timeout(to, now_ms),)
        elif before is not None and before.state is TransactionState.ONGOING:
            timers = (Timer(_TIMEOUT + to.transactional_id, None),)
        return Decision(answers=() if answer is None else (answer,), facts=(to,), timers=timers)

    @staticmethod
    def _timeout(transaction: TransactionMetadata, now_ms: CoordinatorTime) -> Timer:
        # The start time may come from another coordinator's clock that is ahead of this one. The remaining time never
        # exceeds the timeout.
        left_ms = min(max(transaction.deadline_ms - now_ms.wall_ms, 0), transaction.timeout_ms)
        return Timer(_TIMEOUT + transaction.transactional_id, now_ms + left_ms)

    def _next_check(self, now_ms: CoordinatorTime) -> Timer:
        return Timer(_FORGET_IDS, now_ms + self._config.id_expiration_check_ms)

    # Queries

    def _known(self, transactional_id: str) -> TransactionMetadata:
        if not transactional_id:
            raise RequestError("a transactional id cannot be empty")
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise UnknownTransactionalProducer(f"the transactional id {transactional_id!r} is not known")
        return transaction

    def _owned(self, transactional_id: str, owner: ProducerIdentity) -> TransactionMetadata:
        """Returns the transaction. Raises unless this producer owns it and may continue it."""
        transaction = self._known(transactional_id)
        if transaction.producer_id != owner.producer_id:
            raise UnknownTransactionalProducer(f"{transactional_id!r} has another producer id")
        if transaction.epoch != owner.epoch:
            raise ProducerFenced(f"{transactional_id!r} is at epoch {transaction.epoch}, not {owner.epoch}")
        if transaction.state in PREPARED:
            raise ConcurrentTransactions("the transaction before is being completed")
        return transaction

    def describe(self, transactional_id: str) -> TransactionMetadata:
        if not transactional_id:
            raise RequestError("a transactional id cannot be empty")
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise TransactionalIdNotFound(f"the transactional id {transactional_id!r} is not known")
        return transaction

    def prepared(self) -> Iterator[TransactionMetadata]:
        """Yields the transactions that are decided, and whose markers may not be written everywhere."""
        return (one for one in list(self.transactions.values()) if one.state in PREPARED)

    def highest_producer_id(self) -> int:
        """Returns the highest producer id of all transactional ids, next producer ids included; -1 without any."""
        known = self.transactions.values()
        return max((max(one.producer_id, one.next_producer_id) for one in known), default=-1)

    # Changes

    def encode(self, fact: TransactionFact) -> CoordinatorRecord:
        if isinstance(fact, TransactionalIdExpired):
            return CoordinatorRecord(log_records.encode_key(fact.transactional_id), None)
        return log_records.encode(fact)

    def apply(self, fact: TransactionFact, offset: int) -> None:
        if isinstance(fact, TransactionalIdExpired):
            self.transactions.pop(fact.transactional_id, None)
        else:
            self.transactions[fact.transactional_id] = fact

    def replay(self, record: CoordinatorRecord, offset: int) -> None:
        transactional_id = log_records.decode_key(record.key)
        if transactional_id is None:
            return
        if record.value is None:
            self.apply(TransactionalIdExpired(transactional_id), offset)
            return
        transaction = log_records.decode_value(transactional_id, record.value)
        if transaction is not None:
            self.apply(transaction, offset)
