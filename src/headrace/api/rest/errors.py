"""Maps Kafka errors to HTTP problem documents (RFC 9457): a status, Kafka's error code, and whether the error is
retriable. Every error response is built here.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from fastapi import HTTPException

from headrace.client.aio.transport import OverloadedError
from headrace.client.core.errors import RETRIABLE_CODES, KafkaApiError, PartitionDeleted, UnknownOutcomeError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.model.errors import ErrorCode, HeadraceError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
# Retry-After of retriable errors: a restarting broker is available again within a second or two.
RETRY_AFTER_S = 1

_NOT_FOUND = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
}
_CONFLICT = {
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.DUPLICATE_RESOURCE,
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
}
_TOO_LARGE = {
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
}
_FORBIDDEN = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_TOO_MANY = {ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.GROUP_MAX_SIZE_REACHED}
_UNPROCESSABLE = {
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_RECORD,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.TOPIC_DELETION_DISABLED,
    ErrorCode.INVALID_REGULAR_EXPRESSION,
}
_STATUS: Mapping[ErrorCode, int] = {
    **dict.fromkeys(RETRIABLE_CODES, 503),
    **dict.fromkeys(_UNPROCESSABLE, 422),
    **dict.fromkeys(_NOT_FOUND, 404),
    **dict.fromkeys(_CONFLICT, 409),
    **dict.fromkeys(_TOO_LARGE, 413),
    **dict.fromkeys(_FORBIDDEN, 403),
    **dict.fromkeys(_TOO_MANY, 429),
}
_TITLES = {
    400: "Bad request",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Request timeout",
    409: "Conflict",
    412: "Precondition failed",
    413: "Content too large",
    415: "Unsupported media type",
    422: "Unprocessable request",
    429: "Too many requests",
    431: "Request header fields too large",
    500: "Internal error",
    502: "Unexpected response of the broker",
    503: "Service unavailable",
}


class Problem(HTTPException):
    """An error response. `detail` contains the remedy."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: ErrorCode | None = None,
        retriable: bool = False,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail)
        self.status, self.code, self.retriable = status, code, retriable
        self.more = dict(more or {})
        self.headers: dict[str, str] = dict(headers or {})

    def answer(self, instance: str) -> "HttpResponse":
        kind = f"urn:headrace:{self.code.name.lower().replace('_', '-')}" if self.code is not None else "about:blank"
        document: dict[str, Any] = {
            "type": kind,
            "title": _TITLES.get(self.status, "Error"),
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "retriable": self.retriable,
        }
        if self.code is not None:
            document |= {"kafka_code": int(self.code), "kafka_error": self.code.name}
        headers = dict(self.headers or {})
        if self.retriable:
            headers.setdefault("retry-after", str(RETRY_AFTER_S))
        return HttpResponse(self.status, to_json(document | self.more), MEDIA_TYPE, headers)


def to_json(document: Any) -> bytes:
    """Encodes a document, with a newline at the end for terminals."""
    return orjson.dumps(document, default=str, option=orjson.OPT_APPEND_NEWLINE)


class HttpResponse(NamedTuple):
    """A complete HTTP response that does not depend on a framework."""

    status: int
    body: bytes
    media_type: str = "application/json"
    headers: Mapping[str, str] = {}

    def head(self) -> list[tuple[bytes, bytes]]:
        made = [(b"content-type", self.media_type.encode()), (b"content-length", b"%d" % len(self.body))]
        return made + [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]


def problem_of(error: BaseException) -> Problem:
    """Returns the problem for an exception. An unexpected exception is logged and becomes a 500."""
    match error:
        case Problem():
            return error
        case HTTPException():
            return Problem(error.status_code, str(error.detail), headers=error.headers)
        case PartitionDeleted():
            return Problem(503, f"{error}; try again", code=error.code, retriable=True)
        case KafkaApiError():
            return Problem(_STATUS.get(error.code, 502), str(error), code=error.code, retriable=error.passes)
        case BrokerUnreachable() | UnknownOutcomeError():
            return Problem(503, f"{error}; retry, or see the broker's log", retriable=True)
        case OverloadedError():
            return Problem(503, f"{error}; retry later", retriable=True)
        case HeadraceError():
            status = _STATUS.get(error.code, 502)
            return Problem(status, str(error), code=error.code, retriable=error.retriable)
        case _:
            log.error("Unexpected %s", type(error).__name__, exc_info=error)
            return Problem(500, f"Internal error ({type(error).__name__}). See the log of the REST server.")
