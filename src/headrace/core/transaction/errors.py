"""Errors of transaction coordinators: one class per error code."""

from headrace.model.errors import ErrorCode, RequestError


class UnknownTransactionalProducer(RequestError):
    """The transactional id is unknown, or belongs to another producer id."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class ProducerFenced(RequestError):
    """A newer producer with the same transactional id has fenced this one."""

    code = ErrorCode.PRODUCER_FENCED


class ConcurrentTransactions(RequestError):
    """The previous transaction is still being completed; the request is retriable."""

    code = ErrorCode.CONCURRENT_TRANSACTIONS
    retriable = True


class WrongTransactionState(RequestError):
    """The transaction cannot end this way: there is none, or it has ended the other way."""

    code = ErrorCode.INVALID_TXN_STATE


class InvalidTransactionTimeout(RequestError):
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class TransactionalIdNotFound(RequestError):
    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class PartitionNotInTransaction(RequestError):
    """A write to a partition that was not added to the open transaction.

    The producer recovers by aborting the transaction.
    """

    code = ErrorCode.TRANSACTION_ABORTABLE


class ProducerIdNeeded(Exception):
    """The decision needs a new producer id. The caller allocates one and repeats the call."""
