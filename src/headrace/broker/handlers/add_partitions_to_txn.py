"""AddPartitionsToTxn: what a transaction is about to write to. All of it is added, or nothing."""

from headrace.broker.call import Call
from headrace.broker.handlers.shared import allows
from headrace.core.transaction.values import ProducerIdentity
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.model.ids import TopicPartition
from headrace.protocol.add_partitions_to_txn import (
    MANY_FROM,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionResult,
    TransactionToAdd,
)
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

WRITE_TRANSACTIONAL_ID = access_for(ApiKey.ADD_PARTITIONS_TO_TXN, ResourceType.TRANSACTIONAL_ID, Operation.WRITE)
WRITE_TOPIC = access_for(ApiKey.ADD_PARTITIONS_TO_TXN, ResourceType.TOPIC, Operation.WRITE)
CLUSTER_ACTION = access_for(ApiKey.ADD_PARTITIONS_TO_TXN, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)

PRODUCER_FENCED_FROM = 2  # older clients know the fence by another name
EPOCH_BUMP_FROM = 5
BUMPING_VERSION = 2  # of `transaction.version`


async def handle(request: AddPartitionsToTxnRequest, call: Call) -> AddPartitionsToTxnResponse:
    if call.api_version >= MANY_FROM and not allows(call, CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    results = [
        TransactionResult(one.transactional_id, list((await _outcome(one, call)).items()))
        for one in request.transactions
    ]
    return AddPartitionsToTxnResponse(results)


async def _outcome(wanted: TransactionToAdd, call: Call) -> dict[TopicPartition, ErrorCode]:
    partitions = list(dict.fromkeys(wanted.partitions))
    if call.api_version < MANY_FROM:
        if not allows(call, WRITE_TRANSACTIONAL_ID, wanted.transactional_id):
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
        return dict.fromkeys(partitions, _code(error, call))
    return dict.fromkeys(partitions, ErrorCode.NONE)


def _refusal(place: TopicPartition, call: Call) -> ErrorCode | None:
    if not allows(call, WRITE_TOPIC, place.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = call.broker.image.topics.get(place.topic)
    if topic is None or not 0 <= place.partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return None


def _verify(transactional_id: str, owner: ProducerIdentity, place: TopicPartition, call: Call) -> ErrorCode:
    try:
        call.broker.transactions.check_partition(transactional_id, owner, place)
    except HeadraceError as error:
        return _code(error, call)
    return ErrorCode.NONE


def _code(error: HeadraceError, call: Call) -> ErrorCode:
    if error.code is ErrorCode.PRODUCER_FENCED and call.api_version < PRODUCER_FENCED_FROM:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code
