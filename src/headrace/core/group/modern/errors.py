"""What only a member of the new protocol is told; everything else is in `core/group/errors.py`."""

from headrace.model.errors import ErrorCode, RequestError


class FencedMemberEpoch(RequestError):
    """The member has missed something: it must give up its partitions and join again."""

    code = ErrorCode.FENCED_MEMBER_EPOCH


class StaleMemberEpoch(RequestError):
    """The member should hear of its new epoch first, then try again."""

    code = ErrorCode.STALE_MEMBER_EPOCH
    retriable = True


class UnreleasedInstance(RequestError):
    """Another member still holds this instance id."""

    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignor(RequestError):
    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class InvalidRegex(RequestError):
    code = ErrorCode.INVALID_REGULAR_EXPRESSION
