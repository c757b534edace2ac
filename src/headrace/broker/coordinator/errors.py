"""Errors of a coordinator that is unavailable or on another broker. All are retriable, after a lookup if necessary."""

from headrace.model.errors import ErrorCode, RequestError


class NotCoordinator(RequestError):
    """Another broker is the coordinator of this group or transaction. Clients look up the coordinator and retry."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True


class CoordinatorLoading(RequestError):
    """The coordinator is still loading its partition. Clients retry."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True


class CoordinatorNotAvailable(RequestError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True
