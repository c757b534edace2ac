"""OffsetFetch: returns committed offsets of groups, for the requested partitions or for all."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from headrace.broker.api.context import RequestContext
from headrace.broker.api.deferred import DeferredResponse
from headrace.broker.coordinator.context import Waiter
from headrace.broker.handlers.access import allows
from headrace.core.coordinator import Answer, CoordinatorTime, Decision, RequestId
from headrace.core.group.coordinator_shard import FetchedOffsets, GroupCoordinatorShard
from headrace.core.group.errors import InvalidGroupId
from headrace.core.group.group_manager import Committer
from headrace.core.group.records import NO_TOPIC_ID
from headrace.core.image.metadata_image import TopicImage
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError
from headrace.model.ids import TopicPartition, by_topic
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.offset_fetch import (
    TOPIC_ID_FROM,
    GroupOffsetsQuery,
    GroupRow,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetRow,
    TopicOffsetsQuery,
)
from headrace.security.authorization import Operation, ResourceType, access_for

DESCRIBE_GROUP = access_for(ApiKey.OFFSET_FETCH, ResourceType.GROUP, Operation.DESCRIBE)
DESCRIBE_TOPIC = access_for(ApiKey.OFFSET_FETCH, ResourceType.TOPIC, Operation.DESCRIBE)

TopicAnswer = tuple[str | UUID, list[OffsetRow]]


def handle_offset_fetch(request: OffsetFetchRequest, call: RequestContext) -> DeferredResponse[OffsetFetchResponse]:
    """A plain function: every consumer sends this when it starts, and after a broker restart all of them do."""
    found: list[FetchedOffsets | HeadraceError | None] = [None] * len(request.groups)
    later = DeferredResponse(lambda _: _response(request, found, call))
    still_open = len(found)

    def answered(number: int, reply: Any) -> None:
        nonlocal still_open
        found[number] = reply
        still_open -= 1
        if not still_open:
            later.settle(None)

    for number, wish in enumerate(request.groups):
        try:
            _ask(wish, request.require_stable, call, partial(answered, number))
        except HeadraceError as error:
            answered(number, error)
    if not found:
        later.settle(None)
    return later


def _ask(wish: GroupOffsetsQuery, require_stable: bool, call: RequestContext, waiter: Waiter) -> None:
    group_id = wish.group_id
    if not allows(call, DESCRIBE_GROUP, group_id):
        raise GroupDenied(f"no access to group {group_id}")
    if not group_id:
        raise InvalidGroupId("a group has a name")
    member = Committer(wish.member_id or "", None, wish.member_epoch, call.api_version)

    def decide(machine: GroupCoordinatorShard, ticket: RequestId, now: CoordinatorTime) -> Decision[Any]:
        return Decision(answers=(Answer(ticket, machine.fetch(group_id, member, require_stable=require_stable)),))

    call.broker.groups.look(group_id, decide, waiter, confirm=require_stable)


def _response(
    request: OffsetFetchRequest, found: Sequence[FetchedOffsets | HeadraceError | None], call: RequestContext
) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        [_group(wish, one, call) for wish, one in zip(request.groups, found, strict=True) if one is not None]
    )


def _group(wish: GroupOffsetsQuery, found: FetchedOffsets | HeadraceError, call: RequestContext) -> GroupRow:
    if isinstance(found, HeadraceError):
        return GroupRow(wish.group_id, error=found.code)
    if wish.topics is None:
        return GroupRow(wish.group_id, _everything(found, call))
    return GroupRow(wish.group_id, [_topic(topic, found, call) for topic in wish.topics])


def _everything(found: FetchedOffsets, call: RequestContext) -> list[TopicAnswer]:
    """Returns every offset that the caller may see. Versions with topic ids omit topics that no longer exist."""
    answers: list[TopicAnswer] = []
    for name, indexes in by_topic(sorted(found.offsets)).items():
        if not allows(call, DESCRIBE_TOPIC, name):
            continue
        topic = call.broker.image.topics.get(name)
        topic_id = _id_of(topic)
        partitions = [TopicPartition(name, index) for index in indexes]
        rows = [_row(one, topic_id, found) for one in partitions if found.of(one, topic_id) is not None]
        if not rows:
            continue
        if call.api_version < TOPIC_ID_FROM:
            answers.append((name, rows))
        elif topic is not None:
            answers.append((topic.topic_id, rows))
    return answers


def _id_of(topic: TopicImage | None) -> bytes:
    return NO_TOPIC_ID if topic is None else topic.topic_id.bytes


def _topic(wish: TopicOffsetsQuery, found: FetchedOffsets, call: RequestContext) -> TopicAnswer:
    name = call.broker.image.topic_ids.get(wish.topic) if isinstance(wish.topic, UUID) else wish.topic
    if name is None:
        return wish.topic, _refused(wish.partitions, ErrorCode.UNKNOWN_TOPIC_ID)
    if not allows(call, DESCRIBE_TOPIC, name):
        return wish.topic, _refused(wish.partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return wish.topic, _rows(name, wish.partitions, found, call)


def _rows(name: str, indexes: Iterable[int], found: FetchedOffsets, call: RequestContext) -> list[OffsetRow]:
    topic_id = _id_of(call.broker.image.topics.get(name))
    return [_row(TopicPartition(name, index), topic_id, found) for index in indexes]


def _row(partition: TopicPartition, topic_id: bytes, found: FetchedOffsets) -> OffsetRow:
    if partition in found.unstable:
        return OffsetRow(partition.partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    committed = found.of(partition, topic_id)
    if committed is None:
        return OffsetRow(partition.partition)
    return OffsetRow(partition.partition, committed.offset, committed.leader_epoch, committed.metadata)


def _refused(indexes: Iterable[int], code: int) -> list[OffsetRow]:
    return [OffsetRow(index, error=code) for index in indexes]
