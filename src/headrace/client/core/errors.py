"""Broker errors as one exception type, from raw requests and from librdkafka."""

from typing import TYPE_CHECKING

from headrace.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

# Kafka's retriable errors, as its own clients treat them. UNKNOWN_TOPIC_OR_PARTITION is not among them: headrace's
# clients look up a topic before they use it, so that a misspelled name fails at once.
RETRIABLE_CODES = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
# For requests that change state and would fail or take effect twice if they were executed and sent again.
RETRIABLE_UNSENT_CODES = RETRIABLE_CODES - {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION}


class KafkaApiError(Exception):
    """Error response of a broker, with its code. `passes`: whether the error is retriable."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR

    @property
    def passes(self) -> bool:
        return self.code in RETRIABLE_CODES


class PartitionDeleted(KafkaApiError):
    """The topic was deleted or recreated while a message was queued. The message was not written; retry it.

    The retry is sent to the new topic of that name, or rejected because there is none.
    """

    def __init__(self, topic: str) -> None:
        message = f"{topic} was deleted or created again while the message waited for its partition"
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    @property
    def passes(self) -> bool:
        return True


class UnknownOutcomeError(Exception):
    """No response in time, or no broker reachable: the outcome of the request is unknown. A retry may help."""


def from_kafka_error(error: "KafkaError") -> Exception:
    """Converts librdkafka's errors: positive codes are the broker's, negative ones its own."""
    from confluent_kafka import KafkaError

    code = error.code()
    if code > 0 or code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return KafkaApiError(code, error.str())
    own = {
        KafkaError._UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError._UNKNOWN_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError._INVALID_ARG: ErrorCode.INVALID_REQUEST,
        KafkaError._FENCED: ErrorCode.PRODUCER_FENCED,
    }.get(code)
    return UnknownOutcomeError(error.str()) if own is None else KafkaApiError(own, error.str())
