"""State transitions of one transactional id: EndTxn and InitProducerId. Pure; performs no I/O.

EndTxn: transaction protocol v1 clients keep their epoch, so a retry is recognized by the state alone. With v2
(`transaction.version` 2, KIP-890) each end bumps the epoch: a retry has the previous epoch, a request with the
current epoch belongs to the next transaction, and a delayed request of an earlier transaction is rejected.

InitProducerId: a producer that starts sends only its transactional id, and fences the previous producer. One that
recovers from an error (KIP-360) sends its producer id and epoch, and is accepted only if no other producer has taken
over since.
"""

from headrace.core.transaction.errors import (
    ConcurrentTransactions,
    ProducerFenced,
    ProducerIdNeeded,
    UnknownTransactionalProducer,
    WrongTransactionState,
)
from headrace.core.transaction.metadata import (
    CLIENT_EPOCH_MAX,
    EPOCH_BUMP_FROM,
    PREPARED,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from headrace.model.errors import RequestError
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID


def end(
    transaction: TransactionMetadata,
    owner: ProducerIdentity,
    *,
    commit: bool,
    client_version: int,
    fresh_id: int | None,
    now_ms: int,
) -> TransactionMetadata | None:
    """Returns the prepared transaction.

    Returns None if the request is a retry, and the transaction has already ended this way.
    """
    bumps = client_version >= EPOCH_BUMP_FROM
    repeated = bumps and _is_repeated(transaction, owner)
    if not repeated:
        _check_owner(transaction, owner)
    if transaction.state in PREPARED:
        # Its markers are being written. A client that has its response already may be one transaction ahead, and abort
        # that one at once. The error is retriable; the retry is handled by how this transaction ended.
        raise ConcurrentTransactions("the transaction is being completed")
    if transaction.state is not TransactionState.ONGOING:
        if repeated or not bumps:
            _check_ended_so(transaction, commit)
            return None
        if commit:
            raise _wrong_state(transaction, commit)
        # An abort without a transaction still bumps the epoch, so that a delayed write cannot open one.
    next_id = _next_producer_id(transaction, fresh_id) if bumps else NO_PRODUCER_ID
    return transaction.prepared(commit=commit, client_version=client_version, next_producer_id=next_id, now_ms=now_ms)


def _is_repeated(transaction: TransactionMetadata, owner: ProducerIdentity) -> bool:
    """Returns whether the request repeats the EndTxn that set the current epoch. Fencing leaves no previous epoch."""
    if transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING) or owner.epoch != transaction.last_epoch:
        return False
    return owner.producer_id == transaction.producer_id or (
        owner.producer_id == transaction.previous_producer_id and transaction.epoch == 0
    )


def _check_owner(transaction: TransactionMetadata, owner: ProducerIdentity) -> None:
    if owner.producer_id != transaction.producer_id:
        raise UnknownTransactionalProducer(f"{transaction.transactional_id!r} has another producer id")
    if owner.epoch != transaction.epoch:
        raise ProducerFenced(f"{transaction.transactional_id!r} is at epoch {transaction.epoch}, not {owner.epoch}")


def _check_ended_so(transaction: TransactionMetadata, commit: bool) -> None:
    ended_so = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    if transaction.state is not ended_so:
        raise _wrong_state(transaction, commit)


def _wrong_state(transaction: TransactionMetadata, commit: bool) -> WrongTransactionState:
    deed = "commit" if commit else "abort"
    return WrongTransactionState(f"nothing to {deed}: {transaction.transactional_id!r} is {transaction.state.label}")


def _next_producer_id(transaction: TransactionMetadata, fresh_id: int | None) -> int:
    if not transaction.epochs_are_used_up:
        return NO_PRODUCER_ID
    if fresh_id is None:
        raise ProducerIdNeeded
    return fresh_id


# The log encodes the length of an id in 16 bits.
ID_BYTES_MAX = 2**15 - 1


def take_over(
    known: TransactionMetadata | None,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    fresh_id: int | None,
    now_ms: int,
) -> TransactionMetadata:
    """Returns the next value for the log.

    It is the new producer's, or the abort of the previous producer's open transaction.
    """
    if not 0 < len(transactional_id.encode()) <= ID_BYTES_MAX:
        raise RequestError(f"a transactional id has at least one byte and at most {ID_BYTES_MAX}")
    if known is None:
        # Also for a producer that sends its previous id: that id expired, and with a new producer id every sequence is
        # valid.
        return _first_owner(transactional_id, timeout_ms, fresh_id, now_ms)
    if expected is not None:
        _check_expected(known, expected)
    if known.state in PREPARED:
        raise ConcurrentTransactions("the transaction before is being completed")
    if known.state is TransactionState.ONGOING:
        if expected is not None and expected != known.owner:
            raise ProducerFenced(f"{transactional_id!r} has changed since")  # a delayed request
        # The producer itself retries for the new epoch, and is then accepted because its old epoch is the last one.
        return known.fenced(last_epoch=NO_EPOCH if expected is None else expected.epoch, now_ms=now_ms)
    return _next_owner(known, timeout_ms, expected, fresh_id, now_ms)


def _first_owner(transactional_id: str, timeout_ms: int, fresh_id: int | None, now_ms: int) -> TransactionMetadata:
    if fresh_id is None:
        raise ProducerIdNeeded
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=fresh_id,
        epoch=0,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        updated_ms=now_ms,
    )


def _check_expected(known: TransactionMetadata, expected: ProducerIdentity) -> None:
    if expected.producer_id == known.producer_id:
        # While its own abort is in progress, the producer may retry with the epoch that it had.
        if expected.epoch in (known.epoch, known.last_epoch):
            return
    elif expected.producer_id == known.previous_producer_id and expected.epoch >= CLIENT_EPOCH_MAX:
        return  # a retry: the response with the new id was lost
    raise ProducerFenced(f"{known.transactional_id!r} has another owner by now")


def _next_owner(
    known: TransactionMetadata, timeout_ms: int, expected: ProducerIdentity | None, fresh_id: int | None, now_ms: int
) -> TransactionMetadata:
    if expected is not None and expected != known.owner and known.epoch <= CLIENT_EPOCH_MAX:
        # A retry of a request that was carried out gets the same response. A request of another producer would have
        # cleared last_epoch.
        return known.taken_over(epoch=known.epoch, last_epoch=known.last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
    last_epoch = NO_EPOCH if expected is None else expected.epoch
    if known.epochs_are_used_up:
        if fresh_id is None:
            raise ProducerIdNeeded
        return known.rotated(fresh_id, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
    return known.taken_over(epoch=known.epoch + 1, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
