"""Metadata: where everything is. Creates topics on the way, if both the client and the broker want that.

Topics that a caller may not describe are answered as denied, whether they exist or not; a list of all topics leaves
them out.
"""

from collections.abc import Iterable, Mapping
from uuid import UUID
from weakref import WeakKeyDictionary

from headrace.broker.call import Call
from headrace.broker.handlers.shared import allows, controller_id, operations_on, reachable_brokers
from headrace.broker.handlers.topic_blocks import Block, TopicBlocks, joined
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.names import check_topic_name
from headrace.core.cluster.topics import NewTopic
from headrace.core.internal_topics import INTERNAL_TOPICS
from headrace.model.errors import ErrorCode, HeadraceError, InvalidReplicationFactor, InvalidTopic, TopicExists
from headrace.model.ids import ZERO_UUID
from headrace.protocol.api import ApiKey
from headrace.protocol.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataResponse,
    Node,
    encode_topic,
)
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_TOPIC = access_for(ApiKey.METADATA, ResourceType.TOPIC, Operation.DESCRIBE)
CREATE_TOPIC = access_for(ApiKey.METADATA, ResourceType.TOPIC, Operation.CREATE)
CREATE_ON_CLUSTER = access_for(ApiKey.METADATA, ResourceType.CLUSTER, Operation.CREATE)
DESCRIBE_CLUSTER = access_for(ApiKey.METADATA, ResourceType.CLUSTER, Operation.DESCRIBE)

# A principal's set of operations selects its blocks; more different sets than this at a time are encoded anew.
BLOCK_SETS_MAX = 64

BlockSets = dict[tuple[int, str, int], TopicBlocks]
_BLOCK_SETS: WeakKeyDictionary[ClusterImage, BlockSets] = WeakKeyDictionary()


async def handle(request: MetadataRequest, call: Call) -> MetadataResponse:
    if call.broker.lost_brokers.node_ids:
        await call.broker.lost_brokers.wait_until_replaced(call.broker.image, _names(request, call.broker.image))
    if request.topics is None:
        count, blocks, errors = _every_topic(request, call)
    else:
        asked = dict.fromkeys(request.topics)
        failures = await _create_missing(request, asked, call)
        found = [_topic(topic, request, failures, call) for topic in asked]
        count, (blocks, errors) = len(found), joined(found)
    operations = OPERATIONS_NOT_ASKED
    if request.include_cluster_operations:
        operations = operations_on(call, ResourceType.CLUSTER) if allows(call, DESCRIBE_CLUSTER) else 0
    return MetadataResponse(
        nodes=[
            Node(broker.node_id, endpoint.host, endpoint.port, broker.rack)
            for broker, endpoint in reachable_brokers(call)
        ],
        cluster_id=call.broker.image.cluster_id,
        controller_id=controller_id(call),
        topic_count=count,
        topics=blocks,
        topic_errors=errors,
        cluster_operations=operations,
    )


def _names(request: MetadataRequest, image: ClusterImage) -> list[str] | None:
    if request.topics is None:
        return None
    return [image.topic_ids.get(topic, "") if isinstance(topic, UUID) else topic for topic in request.topics]


def _every_topic(request: MetadataRequest, call: Call) -> tuple[int, bytes, Mapping[int, int]]:
    if call.broker.authorizer.is_open:
        everything = _blocks(_topic_operations(request, call, ""), call).all(call.broker.image)
        return everything.topic_count, everything.blocks, everything.errors
    visible = [topic for topic in call.broker.image.topics.values() if allows(call, DESCRIBE_TOPIC, topic.name)]
    found = [_blocks(_topic_operations(request, call, topic.name), call).of(topic) for topic in visible]
    return len(found), *joined(found)


def _topic(asked: str | UUID, request: MetadataRequest, failures: dict[str, ErrorCode], call: Call) -> Block:
    """The block of one topic that was asked for, or of the reason why it is not shown."""
    image, version = call.broker.image, call.api_version
    if isinstance(asked, UUID):
        known = image.topic_ids.get(asked)
        if known is None:
            return _failed(version, None, asked, ErrorCode.UNKNOWN_TOPIC_ID)
        if not allows(call, DESCRIBE_TOPIC, known):
            return _failed(version, None, asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        name = known
    else:
        name = asked
        if not allows(call, DESCRIBE_TOPIC, name):
            return _failed(version, name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = image.topics.get(name)
    if topic is None:
        error = failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return _failed(version, name, ZERO_UUID, error, is_internal=name in INTERNAL_TOPICS)
    return _blocks(_topic_operations(request, call, name), call).of(topic)


def _failed(version: int, name: str | None, topic_id: UUID, error: ErrorCode, *, is_internal: bool = False) -> Block:
    return Block(encode_topic(version, name, topic_id, error=error, is_internal=is_internal), {error: 1})


async def _create_missing(request: MetadataRequest, asked: Iterable[str | UUID], call: Call) -> dict[str, ErrorCode]:
    """Create what is missing and may be created; returns why the others were not."""
    missing = [name for name in asked if isinstance(name, str) and name not in call.broker.image.topics]
    if not missing:
        return {}
    may_create = request.allow_auto_create and call.broker.settings.flag("auto.create.topics.enable")
    failures: dict[str, ErrorCode] = {}
    wishes: list[NewTopic] = []
    for name in missing:
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            failures[name] = error.code
            continue
        # Internal topics are made by whoever keeps state in them, with the configs that it needs.
        if may_create and name not in INTERNAL_TOPICS and allows(call, DESCRIBE_TOPIC, name):
            if allows(call, CREATE_ON_CLUSTER) or allows(call, CREATE_TOPIC, name):
                wishes.append(NewTopic(name=name))
            else:
                failures[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    outcomes = await call.broker.controller.create_topics(wishes) if wishes else {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, HeadraceError):
            failures[name] = ErrorCode.LEADER_NOT_AVAILABLE if _will_pass(outcome, call) else outcome.code
    return failures


def _will_pass(refusal: HeadraceError, call: Call) -> bool:
    """Whether the client should ask once more."""
    if isinstance(refusal, InvalidReplicationFactor):
        # The cluster has brokers enough, and some have not come yet or are away.
        return call.broker.settings.integer("default.replication.factor") <= call.broker.size_of_cluster()
    return isinstance(refusal, TopicExists)  # somebody else created it, and somebody deleted it again


def _topic_operations(request: MetadataRequest, call: Call, name: str) -> int:
    return operations_on(call, ResourceType.TOPIC, name) if request.include_topic_operations else OPERATIONS_NOT_ASKED


def _blocks(operations: int, call: Call) -> TopicBlocks:
    image = call.broker.image
    sets = _BLOCK_SETS.setdefault(image, {})
    key = (call.api_version, call.listener, operations)
    blocks = sets.get(key)
    if blocks is None:
        if len(sets) >= BLOCK_SETS_MAX:
            sets.clear()
        blocks = sets[key] = TopicBlocks(*key)
    blocks.follow_brokers(image, call.broker.lost_brokers.node_ids)
    return blocks
