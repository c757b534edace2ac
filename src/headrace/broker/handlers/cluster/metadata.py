"""Metadata: topics, partitions and brokers, encoded per topic and cached.

Creates missing topics if both the client and the broker allow it. A topic that the caller may not describe is
reported as denied, whether it exists or not; a list of all topics omits it.

The metadata image replaces a TopicImage on every change, so a cached block is valid while its topic is the same
object.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows, controller_id, operations_on, reachable_brokers
from headrace.broker.handlers.cluster.cluster_view import View, partition_rows
from headrace.core.controller.topic_control import NewTopic
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import BrokerRegistration, TopicImage
from headrace.core.topic import INTERNAL_TOPICS, check_topic_name
from headrace.model.errors import ErrorCode, HeadraceError, InvalidReplicationFactor, InvalidTopic, TopicExists
from headrace.model.ids import ZERO_UUID
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.metadata import (
    NO_ERRORS,
    OPERATIONS_NOT_ASKED,
    MetadataRequest,
    MetadataResponse,
    Node,
    encode_partitions,
    encode_topic,
    partition_layout,
)
from headrace.security.authorization import Operation, ResourceType, access_for

# Blocks of deleted topics are dropped when the cache has this many more blocks than there are topics.
SPARE_BLOCKS_MAX = 1000


class TopicBlock(NamedTuple):
    """One encoded topic and the number of partition rows with each error code."""

    encoded: bytes
    errors: Mapping[int, int] = NO_ERRORS


class Kept(NamedTuple):
    topic: TopicImage
    block: TopicBlock


class Joined(NamedTuple):
    revision: int
    topic_count: int
    blocks: bytes
    errors: Mapping[int, int]


class TopicBlocks:
    """Cached blocks for one version, one listener and one bit field of authorized operations.

    The image is passed to each call and not stored, so the blocks never outlive it.
    """

    def __init__(self, version: int, listener: str, operations: int) -> None:
        self._version = version
        self._listener = listener
        self._operations = operations
        self._brokers: tuple[BrokerRegistration, ...] = ()
        self._lost: frozenset[int] = frozenset()
        self._view = View(frozenset(), frozenset())
        self._blocks: dict[str, Kept] = {}
        self._all: Joined | None = None

    def of(self, topic: TopicImage) -> TopicBlock:
        kept = self._blocks.get(topic.name)
        if kept is None or kept.topic is not topic:
            kept = self._blocks[topic.name] = Kept(topic, self._encode(topic))
        return kept.block

    def all(self, image: MetadataImage) -> Joined:
        """Returns the joined blocks of all topics."""
        if self._all is None or self._all.revision != image.revision:
            blocks = [self.of(topic) for topic in image.topics.values()]
            self._all = Joined(image.revision, len(blocks), *_joined_blocks(blocks))
        return self._all

    def follow_brokers(self, image: MetadataImage, lost: frozenset[int] = frozenset()) -> None:
        """Drops all blocks if the registered or the lost brokers have changed, or if too many topics were deleted."""
        brokers = tuple(image.brokers.values())
        if brokers != self._brokers or lost != self._lost:
            self._brokers, self._lost = brokers, lost
            self._view = view_of(brokers, self._listener, lost)
            self._blocks.clear()
            self._all = None
        elif len(self._blocks) > len(image.topics) + SPARE_BLOCKS_MAX:
            self._blocks.clear()

    def _encode(self, topic: TopicImage) -> TopicBlock:
        rows = list(partition_rows(self._version, topic.partitions, self._view))
        encoded = encode_topic(
            self._version,
            topic.name,
            topic.topic_id,
            encode_partitions(partition_layout(self._version), rows),
            is_internal=topic.name in INTERNAL_TOPICS,
            operations=self._operations,
        )
        return TopicBlock(encoded, Counter(row.error for row in rows if row.error))


def _joined_blocks(blocks: Collection[TopicBlock]) -> tuple[bytes, Mapping[int, int]]:
    """Returns the concatenated blocks and the sum of their error counts."""
    errors: Counter[int] = Counter()
    for block in blocks:
        if block.errors:
            errors.update(block.errors)
    return b"".join([block.encoded for block in blocks]), errors


def view_of(brokers: tuple[BrokerRegistration, ...], listener: str, lost: frozenset[int] = frozenset()) -> View:
    """`lost`: brokers that the failure detector considers dead although their sessions have not expired."""
    return View(
        frozenset(broker.node_id for broker in brokers),
        frozenset(
            broker.node_id
            for broker in brokers
            if broker.is_live and broker.node_id not in lost and any(one.name == listener for one in broker.endpoints)
        ),
    )


DESCRIBE_TOPIC = access_for(ApiKey.METADATA, ResourceType.TOPIC, Operation.DESCRIBE)
CREATE_TOPIC = access_for(ApiKey.METADATA, ResourceType.TOPIC, Operation.CREATE)
CREATE_ON_CLUSTER = access_for(ApiKey.METADATA, ResourceType.CLUSTER, Operation.CREATE)
DESCRIBE_CLUSTER = access_for(ApiKey.METADATA, ResourceType.CLUSTER, Operation.DESCRIBE)

# A principal's set of operations selects its blocks. When more different sets than this are cached, all are dropped.
BLOCK_SETS_MAX = 64

BlockSets = dict[tuple[int, str, int], TopicBlocks]
_BLOCK_SETS: WeakKeyDictionary[MetadataImage, BlockSets] = WeakKeyDictionary()


async def handle_metadata(request: MetadataRequest, call: RequestContext) -> MetadataResponse:
    if call.broker.lost_brokers.node_ids:
        await call.broker.lost_brokers.wait_until_replaced(call.broker.image, _names(request, call.broker.image))
    if request.topics is None:
        count, blocks, errors = _every_topic(request, call)
    else:
        asked = dict.fromkeys(request.topics)
        failures = await _create_missing(request, asked, call)
        found = [_topic(topic, request, failures, call) for topic in asked]
        count, (blocks, errors) = len(found), _joined_blocks(found)
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


def _names(request: MetadataRequest, image: MetadataImage) -> list[str] | None:
    if request.topics is None:
        return None
    return [image.topic_ids.get(topic, "") if isinstance(topic, UUID) else topic for topic in request.topics]


def _every_topic(request: MetadataRequest, call: RequestContext) -> tuple[int, bytes, Mapping[int, int]]:
    if call.broker.authorizer.is_open:
        everything = _blocks(_topic_operations(request, call, ""), call).all(call.broker.image)
        return everything.topic_count, everything.blocks, everything.errors
    visible = [topic for topic in call.broker.image.topics.values() if allows(call, DESCRIBE_TOPIC, topic.name)]
    found = [_blocks(_topic_operations(request, call, topic.name), call).of(topic) for topic in visible]
    return len(found), *_joined_blocks(found)


def _topic(
    asked: str | UUID, request: MetadataRequest, failures: dict[str, ErrorCode], call: RequestContext
) -> TopicBlock:
    """Returns the block of a requested topic, or a block with the error code that applies."""
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


def _failed(
    version: int, name: str | None, topic_id: UUID, error: ErrorCode, *, is_internal: bool = False
) -> TopicBlock:
    return TopicBlock(encode_topic(version, name, topic_id, error=error, is_internal=is_internal), {error: 1})


async def _create_missing(
    request: MetadataRequest, asked: Iterable[str | UUID], call: RequestContext
) -> dict[str, ErrorCode]:
    """Creates missing topics where allowed; returns the error codes of those that were not created."""
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
        # Coordinators create the internal topics, with the configs that those need.
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


def _will_pass(refusal: HeadraceError, call: RequestContext) -> bool:
    """Whether the client should retry."""
    if isinstance(refusal, InvalidReplicationFactor):
        # The cluster is large enough, but some brokers have not registered yet or are unavailable.
        return call.broker.settings.integer("default.replication.factor") <= call.broker.size_of_cluster()
    return isinstance(refusal, TopicExists)  # created and deleted by other clients in the meantime


def _topic_operations(request: MetadataRequest, call: RequestContext, name: str) -> int:
    return operations_on(call, ResourceType.TOPIC, name) if request.include_topic_operations else OPERATIONS_NOT_ASKED


def _blocks(operations: int, call: RequestContext) -> TopicBlocks:
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
