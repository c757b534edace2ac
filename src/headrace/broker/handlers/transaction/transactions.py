"""AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and TxnOffsetCommit.

- AddPartitionsToTxn adds partitions to a transaction before the producer writes to them: all of them or none.
- AddOffsetsToTxn adds the partition of a group's offsets to a transaction.
- EndTxn commits or aborts. It responds when the outcome is durable; the markers may still be in flight.
- TxnOffsetCommit writes offsets that take effect when their transaction is committed. From version 5 on it also adds
  the group's offsets to the transaction; older clients have sent AddOffsetsToTxn before.
"""

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, ProducerId, i16, i32, wire_error
from headrace.core.coordinator import Producer
from headrace.core.group.coordinator_shard import NewOffset, Outcomes
from headrace.core.group.errors import InvalidGroupId
from headrace.core.group.group_manager import Committer
from headrace.core.transaction.metadata import ProducerIdentity
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
from headrace.protocol.messages.add_partitions_to_txn import (
    MANY_FROM,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionResult,
    TransactionToAdd,
)
from headrace.security.authorization import Operation, ResourceType, access_for

ADD_PARTITIONS_TO_TXN_WRITE_TRANSACTIONAL_ID = access_for(
    ApiKey.ADD_PARTITIONS_TO_TXN, ResourceType.TRANSACTIONAL_ID, Operation.WRITE
)
WRITE_TOPIC = access_for(ApiKey.ADD_PARTITIONS_TO_TXN, ResourceType.TOPIC, Operation.WRITE)
CLUSTER_ACTION = access_for(ApiKey.ADD_PARTITIONS_TO_TXN, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)

PRODUCER_FENCED_FROM = 2  # older clients expect INVALID_PRODUCER_EPOCH
EPOCH_BUMP_FROM = 5
BUMPING_VERSION = 2  # level of `transaction.version`


async def handle_add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, call: RequestContext
) -> AddPartitionsToTxnResponse:
    if call.api_version >= MANY_FROM and not allows(call, CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    results = [
        TransactionResult(one.transactional_id, list((await _outcome(one, call)).items()))
        for one in request.transactions
    ]
    return AddPartitionsToTxnResponse(results)


async def _outcome(wanted: TransactionToAdd, call: RequestContext) -> dict[TopicPartition, ErrorCode]:
    partitions = list(dict.fromkeys(wanted.partitions))
    if call.api_version < MANY_FROM:
        if not allows(call, ADD_PARTITIONS_TO_TXN_WRITE_TRANSACTIONAL_ID, wanted.transactional_id):
            return dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        refused = {place: code for place in partitions if (code := _refusal(place, call)) is not None}
        if refused:
            return {place: refused.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in partitions}
    owner = ProducerIdentity(wanted.producer_id, wanted.producer_epoch)
    if wanted.verify_only:
        return {place: _verify(wanted.transactional_id, owner, place, call) for place in partitions}
    version = BUMPING_VERSION if call.api_version >= EPOCH_BUMP_FROM else 0
    try:
        await call.broker.transactions.add_partitions(
            wanted.transactional_id, owner, partitions, client_version=version
        )
    except HeadraceError as error:
        return dict.fromkeys(partitions, _add_partitions_to_txn_code(error, call))
    return dict.fromkeys(partitions, ErrorCode.NONE)


def _refusal(place: TopicPartition, call: RequestContext) -> ErrorCode | None:
    if not allows(call, WRITE_TOPIC, place.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = call.broker.image.topics.get(place.topic)
    if topic is None or not 0 <= place.partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return None


def _verify(transactional_id: str, owner: ProducerIdentity, place: TopicPartition, call: RequestContext) -> ErrorCode:
    try:
        call.broker.transactions.check_partition(transactional_id, owner, place)
    except HeadraceError as error:
        return _add_partitions_to_txn_code(error, call)
    return ErrorCode.NONE


def _add_partitions_to_txn_code(error: HeadraceError, call: RequestContext) -> ErrorCode:
    if error.code is ErrorCode.PRODUCER_FENCED and call.api_version < PRODUCER_FENCED_FROM:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


ADD_OFFSETS_TO_TXN_WRITE_TRANSACTIONAL_ID = access_for(
    ApiKey.ADD_OFFSETS_TO_TXN, ResourceType.TRANSACTIONAL_ID, Operation.WRITE
)
ADD_OFFSETS_TO_TXN_READ_GROUP = access_for(ApiKey.ADD_OFFSETS_TO_TXN, ResourceType.GROUP, Operation.READ)


async def handle_add_offsets_to_txn(request: AddOffsetsToTxnRequest, call: RequestContext) -> AddOffsetsToTxnResponse:
    try:
        await _add(request, call)
        code = ErrorCode.NONE
    except HeadraceError as error:
        code = error.code
    if code is ErrorCode.PRODUCER_FENCED and call.api_version < PRODUCER_FENCED_FROM:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=wire_error(code))


async def _add(request: AddOffsetsToTxnRequest, call: RequestContext) -> None:
    if not allows(call, ADD_OFFSETS_TO_TXN_WRITE_TRANSACTIONAL_ID, request.transactional_id):
        raise TransactionalIdDenied(f"no access to the transactional id {request.transactional_id}")
    if not allows(call, ADD_OFFSETS_TO_TXN_READ_GROUP, request.group_id):
        raise GroupDenied(f"no access to group {request.group_id}")
    await call.broker.transactions.add_offsets(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        request.group_id,
    )


END_TXN_WRITE_TRANSACTIONAL_ID = access_for(ApiKey.END_TXN, ResourceType.TRANSACTIONAL_ID, Operation.WRITE)


async def handle_end_txn(request: EndTxnRequest, call: RequestContext) -> EndTxnResponse:
    if not allows(call, END_TXN_WRITE_TRANSACTIONAL_ID, request.transactional_id):
        return _failure(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        owner = await call.broker.transactions.end(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            commit=request.committed,
            client_version=BUMPING_VERSION if call.api_version >= EPOCH_BUMP_FROM else 0,
        )
    except HeadraceError as error:
        fenced_early = error.code is ErrorCode.PRODUCER_FENCED and call.api_version < PRODUCER_FENCED_FROM
        return _failure(ErrorCode.INVALID_PRODUCER_EPOCH if fenced_early else error.code)
    return EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
    )


def _failure(code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(throttle_time=NO_THROTTLE, error_code=wire_error(code))


TXN_OFFSET_COMMIT_WRITE_TRANSACTIONAL_ID = access_for(
    ApiKey.TXN_OFFSET_COMMIT, ResourceType.TRANSACTIONAL_ID, Operation.WRITE
)
TXN_OFFSET_COMMIT_READ_GROUP = access_for(ApiKey.TXN_OFFSET_COMMIT, ResourceType.GROUP, Operation.READ)
READ_TOPIC = access_for(ApiKey.TXN_OFFSET_COMMIT, ResourceType.TOPIC, Operation.READ)

ABORTABLE_FROM = 4  # clients since this version support TRANSACTION_ABORTABLE
ADDS_OFFSETS_FROM = 5
ADDING_VERSION = 2  # level of `transaction.version`


async def handle_txn_offset_commit(request: TxnOffsetCommitRequest, call: RequestContext) -> TxnOffsetCommitResponse:
    try:
        _check_access(request, call)
        refused, wanted = _sorted_out(request, call)
        outcomes: Outcomes = await _commit(request, wanted, call) if wanted else {}
    except HeadraceError as error:
        return _response(request, {}, _txn_offset_commit_code(error.code, call))
    codes = {
        place: _txn_offset_commit_code(error.code, call)
        for place, error in {**outcomes, **refused}.items()
        if error is not None
    }
    return _response(request, codes, ErrorCode.NONE)


def _check_access(request: TxnOffsetCommitRequest, call: RequestContext) -> None:
    if not allows(call, TXN_OFFSET_COMMIT_WRITE_TRANSACTIONAL_ID, request.transactional_id):
        raise TransactionalIdDenied(f"no access to the transactional id {request.transactional_id}")
    if not allows(call, TXN_OFFSET_COMMIT_READ_GROUP, request.group_id):
        raise GroupDenied(f"no access to group {request.group_id}")
    if not request.group_id:
        raise InvalidGroupId("a group has a name")


def _sorted_out(
    request: TxnOffsetCommitRequest, call: RequestContext
) -> tuple[dict[TopicPartition, HeadraceError], list[NewOffset]]:
    """Splits the request into rows that fail before they reach the group and offsets for the group coordinator."""
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


async def _commit(request: TxnOffsetCommitRequest, wanted: list[NewOffset], call: RequestContext) -> Outcomes:
    transactions, groups = call.broker.transactions, call.broker.groups
    owner = ProducerIdentity(request.producer_id, request.producer_epoch)
    if call.api_version >= ADDS_OFFSETS_FROM:
        await transactions.add_offsets(request.transactional_id, owner, request.group_id, client_version=ADDING_VERSION)
    committer = Committer(
        request.member_id, request.group_instance_id, request.generation_id, call.api_version, transactional=True
    )
    # When the check completes, the offsets are appended in the same event-loop iteration, so no EndTxn can intervene.
    await transactions.check_offsets(request.transactional_id, owner, request.group_id)
    outcomes: Outcomes = await groups.call(
        request.group_id,
        lambda machine, ticket, now: machine.commit(request.group_id, committer, wanted, ticket, now, Producer(*owner)),
    )
    return outcomes


def _txn_offset_commit_code(code: ErrorCode, call: RequestContext) -> ErrorCode:
    """Maps errors to the codes that clients of this version expect from this API."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if call.api_version < ABORTABLE_FROM:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.MESSAGE_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case ErrorCode.CONCURRENT_TRANSACTIONS if call.api_version < ADDS_OFFSETS_FROM:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # retriable for every client
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
