"""The transaction coordinator of one partition of `__transaction_state`: decides, and changes only in `apply`.

Writes no marker: it says in the log that a transaction is prepared, the shell then brings the outcome to every
partition and comes back with `markers_written`. Producer ids are handed in; a decision that needs one and got none
raises ProducerIdNeeded.
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
    """The transactional id has not been used for so long that nobody needs it."""

    transactional_id: str


TransactionFact = TransactionMetadata | TransactionalIdExpired
TransactionDecision = Decision[TransactionFact]


class TransactionCoordinatorShard:
    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self.transactions: dict[str, TransactionMetadata] = {}

    # Deciding

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
        """A producer starts, or goes on after an error: it gets an epoch that fences whoever had the id before."""
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
        """Partitions that the transaction is about to write to; the first ones open it."""
        transaction = self._owned(transactional_id, owner)
        wanted = frozenset(partitions)
        answer = Answer(ticket, None)
        if transaction.state is TransactionState.ONGOING and wanted <= transaction.partitions:
            return Decision(answers=(answer,))
        return self._step(transaction.with_partitions(wanted, client_version, now_ms.wall_ms), answer, now_ms)

    def check_partition(self, transactional_id: str, owner: ProducerIdentity, partition: TopicPartition) -> None:
        """Raise unless the producer's open transaction knows the partition: asked before its first write there."""
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
        if prepared is None:  # the same request again, and it has been carried out already
            return Decision(answers=(Answer(ticket, transaction.owner),))
        return self._step(prepared, Answer(ticket, prepared.completed(now_ms.wall_ms).owner), now_ms)

    def markers_written(self, prepared: TransactionMetadata, now_ms: CoordinatorTime) -> TransactionDecision:
        """Every partition has the outcome."""
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
        """The next value of a transactional id, with the timer that it calls for."""
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
        # Its beginning may be told by the clock of another coordinator, ahead of ours: it never gets more than it has.
        left_ms = min(max(transaction.deadline_ms - now_ms.wall_ms, 0), transaction.timeout_ms)
        return Timer(_TIMEOUT + transaction.transactional_id, now_ms + left_ms)

    def _next_check(self, now_ms: CoordinatorTime) -> Timer:
        return Timer(_FORGET_IDS, now_ms + self._config.id_expiration_check_ms)

    # Asking

    def _known(self, transactional_id: str) -> TransactionMetadata:
        if not transactional_id:
            raise RequestError("a transactional id cannot be empty")
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise UnknownTransactionalProducer(f"the transactional id {transactional_id!r} is not known")
        return transaction

    def _owned(self, transactional_id: str, owner: ProducerIdentity) -> TransactionMetadata:
        """The transaction, if this producer owns it and may go on with it."""
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
        """Decided, and perhaps not yet known to every partition."""
        return (one for one in list(self.transactions.values()) if one.state in PREPARED)

    def highest_producer_id(self) -> int:
        """Of all transactional ids, also one that takes over when a transaction completes; -1 without any."""
        known = self.transactions.values()
        return max((max(one.producer_id, one.next_producer_id) for one in known), default=-1)

    # Changing

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
