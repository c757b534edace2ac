"""InitProducerId: who owns a transactional id from now on, and with which epoch.

A producer that starts says only its transactional id, and fences whoever had it. One that goes on after an error
(KIP-360) says who it is; it is let through only if nobody has taken over meanwhile.
"""

from headrace.core.transaction.errors import ConcurrentTransactions, ProducerFenced, ProducerIdNeeded
from headrace.core.transaction.values import (
    CLIENT_EPOCH_MAX,
    PREPARED,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from headrace.model.errors import RequestError
from headrace.model.ids import NO_EPOCH

# The log writes the length of an id in 16 bits.
ID_BYTES_MAX = 2**15 - 1


def take_over(
    known: Transaction | None,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdentity | None,
    fresh_id: int | None,
    now_ms: int,
) -> Transaction:
    """What the log is to hold next: the new owner, or the abort of what the old one has open."""
    if not 0 < len(transactional_id.encode()) <= ID_BYTES_MAX:
        raise RequestError(f"a transactional id has at least one byte and at most {ID_BYTES_MAX}")
    if known is None:
        # Also one that names its old id: the id was forgotten, and to a new one every sequence is fresh.
        return _first_owner(transactional_id, timeout_ms, fresh_id, now_ms)
    if expected is not None:
        _check_expected(known, expected)
    if known.state in PREPARED:
        raise ConcurrentTransactions("the transaction before is being completed")
    if known.state is TransactionState.ONGOING:
        if expected is not None and expected != known.owner:
            raise ProducerFenced(f"{transactional_id!r} has changed since")  # a request that was held up on its way
        # The owner itself comes back for the new epoch; that its old one counts as its last lets it through then.
        return known.fenced(last_epoch=NO_EPOCH if expected is None else expected.epoch, now_ms=now_ms)
    return _next_owner(known, timeout_ms, expected, fresh_id, now_ms)


def _first_owner(transactional_id: str, timeout_ms: int, fresh_id: int | None, now_ms: int) -> Transaction:
    if fresh_id is None:
        raise ProducerIdNeeded
    return Transaction(
        transactional_id=transactional_id,
        producer_id=fresh_id,
        epoch=0,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        updated_ms=now_ms,
    )


def _check_expected(known: Transaction, expected: ProducerIdentity) -> None:
    if expected.producer_id == known.producer_id:
        # While the owner's own abort is under way it may ask again with the epoch it had.
        if expected.epoch in (known.epoch, known.last_epoch):
            return
    elif expected.producer_id == known.previous_producer_id and expected.epoch >= CLIENT_EPOCH_MAX:
        return  # it did get its new id, and never heard of it
    raise ProducerFenced(f"{known.transactional_id!r} has another owner by now")


def _next_owner(
    known: Transaction, timeout_ms: int, expected: ProducerIdentity | None, fresh_id: int | None, now_ms: int
) -> Transaction:
    if expected is not None and expected != known.owner and known.epoch <= CLIENT_EPOCH_MAX:
        # A repetition of a call that was carried out: the same answer. A stranger's would have cleared last_epoch.
        return known.taken_over(epoch=known.epoch, last_epoch=known.last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
    last_epoch = NO_EPOCH if expected is None else expected.epoch
    if known.epochs_are_used_up:
        if fresh_id is None:
            raise ProducerIdNeeded
        return known.rotated(fresh_id, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
    return known.taken_over(epoch=known.epoch + 1, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
