"""Errors of group coordinators, for the classic and the consumer protocol: one class per error code."""

from headrace.model.errors import ErrorCode, RequestError


class InvalidGroupId(RequestError):
    code = ErrorCode.INVALID_GROUP_ID


class GroupNotFound(RequestError):
    code = ErrorCode.GROUP_ID_NOT_FOUND


class NonEmptyGroup(RequestError):
    """The group still has members that use what is to be deleted."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupSubscribedToTopic(RequestError):
    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class GroupFull(RequestError):
    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class InvalidSessionTimeout(RequestError):
    code = ErrorCode.INVALID_SESSION_TIMEOUT


class InconsistentProtocol(RequestError):
    """The member supports none of the protocols that are common to the others."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class UnknownMember(RequestError):
    """The member is not, or no longer, in the group. It must rejoin without a member id."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class MemberIdRequired(RequestError):
    """The member must rejoin with this member id. A client that does not return has then joined no group."""

    code = ErrorCode.MEMBER_ID_REQUIRED

    def __init__(self, member_id: str) -> None:
        super().__init__("join again with the member id given here")
        self.member_id = member_id


class FencedInstance(RequestError):
    """Another process has joined under the same instance id."""

    code = ErrorCode.FENCED_INSTANCE_ID


class IllegalGeneration(RequestError):
    code = ErrorCode.ILLEGAL_GENERATION


class RebalanceInProgress(RequestError):
    code = ErrorCode.REBALANCE_IN_PROGRESS


class OffsetMetadataTooLarge(RequestError):
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class UnstableOffset(RequestError):
    """A transaction that commits this offset is still open."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    retriable = True


class FencedMemberEpoch(RequestError):
    """The member's epoch is fenced: it must give up its partitions and rejoin."""

    code = ErrorCode.FENCED_MEMBER_EPOCH


class StaleMemberEpoch(RequestError):
    """The member's epoch is outdated: it must send a heartbeat to get the new one, then retry."""

    code = ErrorCode.STALE_MEMBER_EPOCH
    retriable = True


class UnreleasedInstance(RequestError):
    """Another member still holds this instance id."""

    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignor(RequestError):
    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class InvalidRegex(RequestError):
    code = ErrorCode.INVALID_REGULAR_EXPRESSION
