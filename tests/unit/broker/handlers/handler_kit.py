"""A broker without sockets: real controller, partitions and codecs in memory, asked with real bytes."""

import asyncio
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from functools import cached_property
from inspect import isawaitable
from typing import Any, cast
from uuid import UUID

from headrace.broker.api.context import RequestContext
from headrace.broker.api.deferred import DeferredResponse
from headrace.broker.api.registry import handler_of
from headrace.broker.controller.controller import Controller
from headrace.broker.controller.failure_detector import BrokenConnections
from headrace.broker.coordinator.group_coordinator import GroupCoordinatorService
from headrace.broker.coordinator.producer_id_manager import ProducerIdManager
from headrace.broker.coordinator.transaction_coordinator import TransactionCoordinator
from headrace.broker.replica.partition import Partition
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller.topic_control import CreatedTopic, NewTopic
from headrace.core.image.deltas import MetadataDelta
from headrace.core.image.metadata_image import MetadataImage
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.instrumented_store import StoreMetrics
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import count_errors, message_class, read_request, write_response
from headrace.protocol.schema import describe
from headrace.security.authorization import ANONYMOUS, Access, AllowAll, Authorizer, Operation, Principal, ResourceType
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.testing.simulation.clock import SimClock
from tests.unit.protocol.kio_messages import kio_bytes, kio_read
from tests.unit.storage.log_kit import batch_of

LISTENERS = (Listener("PLAINTEXT", "127.0.0.1", 9092), Listener("INTERNAL", "10.0.0.1", 9093))
ACKS_LEADER = 1


class DenyAll:
    """Allows nothing but what it is told to allow, and notes what it was asked."""

    is_open = False

    def __init__(self, *allowed: tuple[ResourceType, Operation], names: Collection[str] = ()) -> None:
        self._allowed = {Access(*access) for access in allowed}
        self._names = names
        self.asked: set[Access] = set()

    def allows(self, principal: Principal, host: str, access: Access, name: str) -> bool:
        self.asked.add(access)
        return access in self._allowed or name in self._names

    def allows_some(self, principal: Principal, host: str, access: Access) -> bool:
        self.asked.add(access)
        return access in self._allowed


class HandlerKit:
    """As much of a Broker as handlers see."""

    def __init__(self, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.settings = Settings(
            data_dir="/data", storage="memory", rack="here", listeners=LISTENERS, broker_configs=named
        )
        self.clock = SimClock()
        self.files = MemoryFiles()
        self.authorizer: Authorizer = AllowAll()
        self.store_figures = StoreMetrics()
        self.store = MemoryStore(self.clock)
        self.controller = Controller(self.store, self.settings, self.clock)
        self.log_dir = LogDirectory(self.files, self.settings.data_dir)
        self.partitions = ReplicaManager(self.log_dir, self.clock, self.settings.node_id, None)
        self.producer_ids = ProducerIdManager(self.controller)
        self.lost_brokers = BrokenConnections()

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    @property
    def node_id(self) -> int:
        return self.settings.node_id

    @cached_property
    def groups(self) -> GroupCoordinatorService:
        return GroupCoordinatorService(cast(Broker, self))

    @cached_property
    def transactions(self) -> TransactionCoordinator:
        return TransactionCoordinator(cast(Broker, self))

    membership = None

    def size_of_cluster(self) -> int:
        return len(self.image.brokers)

    async def start(self, *, with_logs: bool = True) -> "HandlerKit":
        """Without logs, topics are facts only: ten thousand of them cost no files."""
        await self.controller.start(LISTENERS)
        self.partitions.load(self.image, self.controller.broker_configs(), ())
        if with_logs:
            self.controller.on_change(self._follow)
        return self

    async def _follow(self, event: MetadataDelta) -> None:
        await self.partitions.follow(event, self.image, self.controller.broker_configs())
        self.groups.follow(event)
        self.transactions.follow(event)

    async def close(self) -> None:
        await self.groups.close()
        await self.transactions.close()

    # Arranging

    async def create(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        named: dict[str, str | None] = {key.replace("_", "."): value for key, value in configs.items()}
        rows = await self.controller.create_topics([NewTopic(name=name, partitions=partitions, configs=named)])
        created = rows[name]
        assert isinstance(created, CreatedTopic), created
        return created.topic_id

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.partitions.get(topic, index)

    def append(self, topic: str, *values: str, index: int = 0, timestamp: int = 1_000, **fields: int) -> int:
        batch = memoryview(bytearray(batch_of(values, timestamp=timestamp, **fields)))
        return self.partition(topic, index).append(batch, ACKS_LEADER, self.clock.wall_ms()).base_offset

    # Asking

    async def ask(self, api: ApiKey, version: int | None = None, *, listener: str = "PLAINTEXT", **fields: Any) -> Any:
        """Send a request in the bytes of `version`, and read the answer as a client of that version would."""
        version = SERVED[api].highest if version is None else version
        sent = kio_bytes(build(message_class(api, version, "request"), fields))
        call = RequestContext(cast(Broker, self), ANONYMOUS, "test", "127.0.0.1", listener, api, version, 7)
        handler = handler_of(api)
        response = await answer_of(handler(read_request(api, version, memoryview(sent)), call))
        answer = kio_read(message_class(api, version, "response"), write_response(api, version, response))
        counted: Counter[int] = Counter()
        count_errors(api, version, response, counted)
        sent_errors = errors_in(answer)
        if hasattr(response, "error_code") and not hasattr(answer, "error_code") and response.error_code:
            sent_errors[int(response.error_code)] += 1  # counted as in Kafka
        assert counted == sent_errors, f"{api.name} v{version}"
        return answer


def errors_in(answer: Any) -> Counter[int]:
    """Every error code in one of kio's objects, found by the names of its fields."""
    found: Counter[int] = Counter()
    for field in describe(type(answer)):
        value = getattr(answer, field.name)
        if field.struct is not None:
            for one in (value or ()) if field.is_array else [] if value is None else [value]:
                found += errors_in(one)
        elif field.name.endswith("error_code") and field.name != "topic_config_error_code" and value:
            found[int(value)] += 1
    return found


async def answer_of(outcome: Any) -> Any:
    """What a handler answers, whether it is a coroutine, comes later, or is there."""
    if isawaitable(outcome):
        return await outcome
    if not isinstance(outcome, DeferredResponse):
        return outcome
    settled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    outcome.then(settled.set_result)
    return (await settled).response()


def build(message: type[Any], values: dict[str, Any]) -> Any:
    """One of kio's objects from plain dictionaries; what is not named has the schema's default."""
    unknown = set(values) - {field.name for field in describe(message)}
    assert not unknown, f"{message.__name__} has no {unknown}"
    held = {}
    for field in describe(message):
        value = values.get(field.name, field.default)
        if field.struct is not None and value is not None:
            struct = field.struct
            value = tuple(build(struct, one) for one in value) if field.is_array else build(struct, value)
        elif field.is_array and value is not None:
            value = tuple(value)
        elif field.kind == "timedelta_i32" and isinstance(value, int):
            value = timedelta(milliseconds=value)
        held[field.name] = value
    return message(**held)
