"""Why a coordinator cannot answer now. All of it passes: clients ask again, or ask who can."""

from headrace.model.errors import ErrorCode, RequestError


class NotCoordinator(RequestError):
    """Another broker looks after this group or transaction; the client should ask who does."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True


class CoordinatorLoading(RequestError):
    """The coordinator is still reading its log; the client should try again in a moment."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True


class CoordinatorNotAvailable(RequestError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True
