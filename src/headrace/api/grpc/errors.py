"""Maps Kafka errors to gRPC statuses: a status code, a message, and details that a program can act on. Every call that
fails ends here.

The details are a google.rpc.Status with an ErrorInfo (Kafka's error name and code, whether it is retriable) and, for
retriable errors, a RetryInfo.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2

from headrace.client.aio.transport import OverloadedError
from headrace.client.core.errors import RETRIABLE_CODES, KafkaApiError, PartitionDeleted, UnknownOutcomeError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.rpc import headrace_pb2 as pb

log = logging.getLogger(__name__)

DOMAIN = "headrace"
DETAILS_KEY = "grpc-status-details-bin"  # the trailer in which gRPC libraries expect a google.rpc.Status
# A restarting broker is available again within a second or two.
RETRY_DELAY_S = 1
# HTTP/2 trailers must fit the header limits of every gRPC library.
MESSAGE_CHARACTERS_MAX = 1024

Status = grpc.StatusCode

_NOT_FOUND = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.RESOURCE_NOT_FOUND,
}
# The group has a newer generation. The client must rejoin before it continues.
_ABORTED = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH}
_PRECONDITION = {
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.TOPIC_DELETION_DISABLED,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
_INVALID = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
_DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_STATUS: Mapping[ErrorCode, grpc.StatusCode] = {
    **dict.fromkeys(RETRIABLE_CODES, Status.UNAVAILABLE),
    **dict.fromkeys(_NOT_FOUND, Status.NOT_FOUND),
    **dict.fromkeys(_ABORTED, Status.ABORTED),
    **dict.fromkeys(_PRECONDITION, Status.FAILED_PRECONDITION),
    **dict.fromkeys(_INVALID, Status.INVALID_ARGUMENT),
    **dict.fromkeys(_DENIED, Status.PERMISSION_DENIED),
    ErrorCode.OFFSET_OUT_OF_RANGE: Status.OUT_OF_RANGE,
    ErrorCode.TOPIC_ALREADY_EXISTS: Status.ALREADY_EXISTS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Status.RESOURCE_EXHAUSTED,
    ErrorCode.GROUP_MAX_SIZE_REACHED: Status.RESOURCE_EXHAUSTED,
}


@dataclass(slots=True)
class RpcError(Exception):
    """Ends a call with a status other than OK."""

    status: grpc.StatusCode
    reason: str
    message: str
    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: bool = False
    more: dict[str, str] = field(default_factory=dict)

    def details(self) -> bytes:
        facts = {"kafka_code": str(int(self.code)), "retriable": str(self.retriable).lower()} | self.more
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=facts)
        status = status_pb2.Status(code=self.status.value[0], message=self.message)
        status.details.add().Pack(info)
        if self.retriable:
            delay = error_details_pb2.RetryInfo()
            delay.retry_delay.seconds = RETRY_DELAY_S
            status.details.add().Pack(delay)
        return bytes(status.SerializeToString())

    def in_stream(self) -> pb.Failure:
        return pb.Failure(reason=self.reason, kafka_code=int(self.code), message=self.message, retriable=self.retriable)


def invalid(message: str) -> RpcError:
    """Returns INVALID_ARGUMENT; the message names the field and its valid values."""
    return RpcError(Status.INVALID_ARGUMENT, ErrorCode.INVALID_REQUEST.name, message, ErrorCode.INVALID_REQUEST)


def stopping() -> RpcError:
    message = "the server is stopping; reconnect"
    return RpcError(Status.UNAVAILABLE, "SERVER_STOPPING", message, ErrorCode.BROKER_NOT_AVAILABLE, retriable=True)


def failed(error: BaseException) -> RpcError:
    """Returns the status for an exception. An unexpected exception is logged and becomes INTERNAL."""
    match error:
        case RpcError():
            return error
        case KafkaApiError():
            status = (
                Status.UNAVAILABLE if isinstance(error, PartitionDeleted) else _STATUS.get(error.code, Status.UNKNOWN)
            )
            return RpcError(status, error.code.name, str(error), error.code, error.passes)
        case BrokerUnreachable() | UnknownOutcomeError():
            message = f"{error}; retry, or see the broker's log"
            return RpcError(Status.UNAVAILABLE, "NO_ANSWER", message, ErrorCode.NETWORK_EXCEPTION, retriable=True)
        case OverloadedError():
            message = f"{error}; retry later"
            return RpcError(Status.RESOURCE_EXHAUSTED, "TOO_BUSY", message, retriable=True)
        case HeadraceError():
            status = _STATUS.get(error.code, Status.UNKNOWN)
            return RpcError(status, error.code.name, str(error), error.code, error.retriable)
        case BaseExceptionGroup():
            return failed(_first(error))
        # Raised by a write to a client that has cancelled the call or closed the connection.
        case grpc.aio.InternalError():
            return RpcError(Status.CANCELLED, "CLIENT_GONE", "the client has disconnected")
        case _:
            log.error("Unexpected %s", type(error).__name__, exc_info=error)
            return RpcError(Status.INTERNAL, "BUG", f"Internal error ({type(error).__name__}). See the server log.")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the exception that made a task group fail. The other tasks were cancelled because of it."""
    return next(_leaves(group))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


async def end(context: "grpc.aio.ServicerContext[Any, Any]", failure: RpcError) -> NoReturn:
    """Aborts the call with the failure's status and details. Never returns."""
    message = failure.message[:MESSAGE_CHARACTERS_MAX]
    await context.abort(failure.status, message, ((DETAILS_KEY, failure.details()),))
    raise AssertionError("abort raises")
