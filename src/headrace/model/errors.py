"""Every error that headrace raises on purpose.

    HeadraceError                     has a Kafka error code; `retriable`: whether a retry may succeed
    ├── ProtocolError                 the peer's bytes are malformed: the connection is closed
    ├── RequestError                  the request is rejected: the response has the error code
    │   └── NotLeader, UnknownTopic, …
    └── StorageError                  the disk failed: the partition goes offline, nothing is acknowledged
        ├── PassingStorageError       nothing has changed: the partition stays online, a retry may succeed
        │   ├── DiskFull              insufficient disk space: Produce is rejected, reads continue
        │   └── ResourceShortage      no file descriptor or no memory
        ├── MissingFile               a file or directory does not exist; a FileNotFoundError, too
        └── CorruptLog                bytes that were valid fail verification

Only `broker/api/pipeline.py` turns an exception into a response.
"""

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129


class HeadraceError(Exception):
    """The base class. The message is for users and includes the next action; the code is for the protocol."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False


class ProtocolError(HeadraceError):
    """The peer's bytes are malformed; nothing after them on this connection can be parsed."""

    code = ErrorCode.INVALID_REQUEST


class RequestError(HeadraceError):
    """The request was parsed and is rejected."""

    code = ErrorCode.INVALID_REQUEST


class UnsupportedVersion(RequestError):
    code = ErrorCode.UNSUPPORTED_VERSION


class UnknownTopic(RequestError):
    """This broker's metadata has no such topic or partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True


class UnknownTopicId(RequestError):
    code = ErrorCode.UNKNOWN_TOPIC_ID
    retriable = True


class NotLeader(RequestError):
    """Another broker leads this partition; the client should refresh its metadata."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True


class FencedLeaderEpoch(RequestError):
    """The client's leader epoch is older than the broker's."""

    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True


class UnknownLeaderEpoch(RequestError):
    """The client's leader epoch is newer than the broker's, whose metadata lags."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class LookupInterrupted(RequestError):
    """The log changed while a record was looked up by its timestamp; the client should retry."""

    code = ErrorCode.LEADER_NOT_AVAILABLE  # of the retriable codes, the one on which clients of every version retry
    retriable = True


class OffsetOutOfRange(RequestError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class RequestTimedOut(RequestError):
    """The condition that the request waits for was not met in time. It may still be met later."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class InvalidTopic(RequestError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class TopicExists(RequestError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitions(RequestError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(RequestError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(RequestError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfig(RequestError):
    code = ErrorCode.INVALID_CONFIG


class PolicyViolation(RequestError):
    code = ErrorCode.POLICY_VIOLATION


class NotAuthorized(RequestError):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class TopicDenied(NotAuthorized):
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupDenied(NotAuthorized):
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class TransactionalIdDenied(NotAuthorized):
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class InvalidRequiredAcks(RequestError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class NotEnoughReplicas(RequestError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True


class CorruptBatch(RequestError):
    """The checksum or the structure of a batch in a Produce is invalid."""

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True


class InvalidRecord(RequestError):
    """A record violates a rule of its topic; `record_errors` lists these records."""

    code = ErrorCode.INVALID_RECORD

    def __init__(self, message: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidTimestamp(InvalidRecord):
    code = ErrorCode.INVALID_TIMESTAMP


class MessageTooLarge(RequestError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class UnsupportedMessageFormat(RequestError):
    """Record format v0 or v1. Every client since 2017 can write v2."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class UnsupportedCompression(RequestError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class OutOfOrderSequence(RequestError):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(RequestError):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTransactionState(RequestError):
    """The batch is invalid in the current state of its producer's transaction."""

    code = ErrorCode.INVALID_TXN_STATE


class CoordinatorFenced(RequestError):
    """A newer transaction coordinator has already written a marker for this producer."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class FetchSessionNotFound(RequestError):
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    retriable = True


class InvalidFetchSessionEpoch(RequestError):
    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    retriable = True


class StorageError(HeadraceError):
    """A disk operation failed. Never retried and then acknowledged: the content of the disk is unknown."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class PassingStorageError(StorageError):
    """The operation failed before it changed anything, and can succeed later without a restart."""


class ResourceShortage(PassingStorageError):
    """The process or the host is out of file descriptors or memory. The file itself is intact."""


class DiskFull(PassingStorageError):
    """Free disk space is below the reserve.

    Produce is rejected; fetch, delete and retention continue and can free space.
    """


class MissingFile(StorageError, FileNotFoundError):
    """An expected file or directory does not exist. Callers that allow this catch FileNotFoundError."""


class CorruptLog(StorageError):
    """Bytes on disk that were acknowledged fail their checksum: never served, never truncated silently."""

    code = ErrorCode.CORRUPT_MESSAGE
