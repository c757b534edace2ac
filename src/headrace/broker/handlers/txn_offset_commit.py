"""TxnOffsetCommit: offsets that count once their transaction is committed.

From version 5 on it adds the group's offsets to the transaction itself; older clients have done so before.
"""

from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.coordinator import Producer
from headrace.core.group.errors import InvalidGroupId
from headrace.core.group.family import Committer
from headrace.core.group.machine import NewOffset, Outcomes
from headrace.core.transaction.values import ProducerIdentity
from headrace.model.errors import (
    ErrorCode,
    GroupDenied,
    HeadraceError,
    TopicDenied,
    TransactionalIdDenied,
    UnknownTopic,
)
from headrace.model.ids import TopicPartition
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

WRITE_TRANSACTIONAL_ID = access_for(ApiKey.TXN_OFFSET_COMMIT, ResourceType.TRANSACTIONAL_ID, Operation.WRITE)
READ_GROUP = access_for(ApiKey.TXN_OFFSET_COMMIT, ResourceType.GROUP, Operation.READ)
READ_TOPIC = access_for(ApiKey.TXN_OFFSET_COMMIT, ResourceType.TOPIC, Operation.READ)

ABORTABLE_FROM = 4  # clients of this version know an error that aborting the transaction heals
ADDS_OFFSETS_FROM = 5
ADDING_VERSION = 2  # of `transaction.version`


async def handle(request: TxnOffsetCommitRequest, call: Call) -> TxnOffsetCommitResponse:
    try:
        _check_access(request, call)
        refused, wanted = _sorted_out(request, call)
        outcomes: Outcomes = await _commit(request, wanted, call) if wanted else {}
    except HeadraceError as error:
        return _response(request, {}, _code(error.code, call))
    codes = {place: _code(error.code, call) for place, error in {**outcomes, **refused}.items() if error is not None}
    return _response(request, codes, ErrorCode.NONE)


def _check_access(request: TxnOffsetCommitRequest, call: Call) -> None:
    if not allows(call, WRITE_TRANSACTIONAL_ID, request.transactional_id):
        raise TransactionalIdDenied(f"no access to the transactional id {request.transactional_id}")
    if not allows(call, READ_GROUP, request.group_id):
        raise GroupDenied(f"no access to group {request.group_id}")
    if not request.group_id:
        raise InvalidGroupId("a group has a name")


def _sorted_out(
    request: TxnOffsetCommitRequest, call: Call
) -> tuple[dict[TopicPartition, HeadraceError], list[NewOffset]]:
    """What cannot be committed, whoever asks; and what the group decides about."""
    refused: dict[TopicPartition, HeadraceError] = {}
    wanted: list[NewOffset] = []
    for topic in request.topics:
        known = call.broker.image.topics.get(topic.name)
        readable = allows(call, READ_TOPIC, topic.name)
        for one in topic.partitions:
            place = TopicPartition(topic.name, one.partition_index)
            if not readable:
                refused[place] = TopicDenied(f"no access to topic {topic.name}")
            elif known is None or not 0 <= one.partition_index < len(known.partitions):
                refused[place] = UnknownTopic(f"there is no partition {place}")
            else:
                note = one.committed_metadata or ""
                row = NewOffset(place, one.committed_offset, one.committed_leader_epoch, note)
                wanted.append(row._replace(topic_id=known.topic_id.bytes))
    return refused, wanted


async def _commit(request: TxnOffsetCommitRequest, wanted: list[NewOffset], call: Call) -> Outcomes:
    transactions, groups = call.broker.transactions, call.broker.groups
    owner = ProducerIdentity(request.producer_id, request.producer_epoch)
    if call.api_version >= ADDS_OFFSETS_FROM:
        await transactions.add_offsets(request.transactional_id, owner, request.group_id, client_version=ADDING_VERSION)
    committer = Committer(
        request.member_id, request.group_instance_id, request.generation_id, call.api_version, transactional=True
    )
    # Answered in the same turn of the loop in which the offsets are written, so that no end comes in between.
    await transactions.check_offsets(request.transactional_id, owner, request.group_id)
    outcomes: Outcomes = await groups.call(
        request.group_id,
        lambda machine, ticket, now: machine.commit(request.group_id, committer, wanted, ticket, now, Producer(*owner)),
    )
    return outcomes


def _code(code: ErrorCode, call: Call) -> ErrorCode:
    """In the words that clients of this version know from this API."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if call.api_version < ABORTABLE_FROM:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.MESSAGE_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case ErrorCode.CONCURRENT_TRANSACTIONS if call.api_version < ADDS_OFFSETS_FROM:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # one that makes every client try again
    return code


def _response(
    request: TxnOffsetCommitRequest, codes: dict[TopicPartition, ErrorCode], otherwise: ErrorCode
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=i32(one.partition_index),
                        error_code=wire_error(codes.get(TopicPartition(topic.name, one.partition_index), otherwise)),
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
