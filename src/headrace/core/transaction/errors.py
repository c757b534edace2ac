"""What a transaction coordinator says no with. One class for each code."""

from headrace.model.errors import ErrorCode, RequestError


class UnknownTransactionalProducer(RequestError):
    """The transactional id is unknown, or belongs to another producer id."""

    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class ProducerFenced(RequestError):
    """A newer producer has taken over the transactional id; this one must stop."""

    code = ErrorCode.PRODUCER_FENCED


class ConcurrentTransactions(RequestError):
    """The transaction before is still being completed; the client should try again in a moment."""

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
    """A write to a partition that the open transaction does not know; aborting the transaction heals it."""

    code = ErrorCode.TRANSACTION_ABORTABLE


class ProducerIdNeeded(Exception):
    """The decision needs a producer id that nobody had before, and was given none: get one and ask again."""
