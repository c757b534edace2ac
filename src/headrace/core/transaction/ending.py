"""EndTxn: whether a transaction may end as its producer wants it to.

Two dialects. Older clients keep their epoch, so a repeated request is told by the state alone. With
`transaction.version` 2 (KIP-890) each end bumps the epoch: a repetition has the epoch before the current one, the
same epoch means the next transaction, and a late request of an earlier transaction is refused.
"""

from headrace.core.transaction.errors import (
    ConcurrentTransactions,
    ProducerFenced,
    ProducerIdNeeded,
    UnknownTransactionalProducer,
    WrongTransactionState,
)
from headrace.core.transaction.values import (
    EPOCH_BUMP_FROM,
    PREPARED,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from headrace.model.ids import NO_PRODUCER_ID


def end(
    transaction: Transaction,
    owner: ProducerIdentity,
    *,
    commit: bool,
    client_version: int,
    fresh_id: int | None,
    now_ms: int,
) -> Transaction | None:
    """The prepared transaction; None if it has ended this way already and the client only did not hear of it."""
    bumps = client_version >= EPOCH_BUMP_FROM
    repeated = bumps and _is_repeated(transaction, owner)
    if not repeated:
        _check_owner(transaction, owner)
    if transaction.state in PREPARED:
        # Its markers are under way. A client that has its answer already may be one transaction ahead, and give that
        # one up at once: whatever it wants, it is told to ask again, and then judged by how this one ended.
        raise ConcurrentTransactions("the transaction is being completed")
    if transaction.state is not TransactionState.ONGOING:
        if repeated or not bumps:
            _check_ended_so(transaction, commit)
            return None
        if commit:
            raise _wrong_state(transaction, commit)
        # An abort without a transaction still bumps the epoch, so that a late write cannot open one.
    next_id = _next_producer_id(transaction, fresh_id) if bumps else NO_PRODUCER_ID
    return transaction.prepared(commit=commit, client_version=client_version, next_producer_id=next_id, now_ms=now_ms)


def _is_repeated(transaction: Transaction, owner: ProducerIdentity) -> bool:
    """Whether the end that brought the current epoch is asked for again. A fence leaves no last epoch behind."""
    if transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING) or owner.epoch != transaction.last_epoch:
        return False
    return owner.producer_id == transaction.producer_id or (
        owner.producer_id == transaction.previous_producer_id and transaction.epoch == 0
    )


def _check_owner(transaction: Transaction, owner: ProducerIdentity) -> None:
    if owner.producer_id != transaction.producer_id:
        raise UnknownTransactionalProducer(f"{transaction.transactional_id!r} has another producer id")
    if owner.epoch != transaction.epoch:
        raise ProducerFenced(f"{transaction.transactional_id!r} is at epoch {transaction.epoch}, not {owner.epoch}")


def _check_ended_so(transaction: Transaction, commit: bool) -> None:
    ended_so = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    if transaction.state is not ended_so:
        raise _wrong_state(transaction, commit)


def _wrong_state(transaction: Transaction, commit: bool) -> WrongTransactionState:
    deed = "commit" if commit else "abort"
    return WrongTransactionState(f"nothing to {deed}: {transaction.transactional_id!r} is {transaction.state.label}")


def _next_producer_id(transaction: Transaction, fresh_id: int | None) -> int:
    if not transaction.epochs_are_used_up:
        return NO_PRODUCER_ID
    if fresh_id is None:
        raise ProducerIdNeeded
    return fresh_id
