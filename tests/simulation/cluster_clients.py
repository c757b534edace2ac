"""Plain clients of a simulated cluster: producers with idempotence, and consumers that read everything.

What they are told, they tell the world's ledgers; whatever contradicts that later is a broken promise.
"""

import asyncio
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.aio.broker_connection import ConnectionLost
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.frames import REQUEST_HEADER
from headrace.protocol.messages.replica_fetch import ReplicaFetch, WantedPartition, decode_response, encode_request
from headrace.protocol.primitives import EMPTY_TAGS, INT32, Reader, array_length, nullable_string, string, uvarint
from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.testing.simulation.network import SimNetwork
from tests.simulation.cluster_promises import HistoryChanged, values_in

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

CLIENT = 100  # the number of the first client in the network
PATIENCE_S = 3.0
TOPIC = "t"
PRODUCE_VERSION = 9
PRODUCE_TIMEOUT_MS = 5000
Until = Callable[[], bool]
_ACKS_AND_TIMEOUT = Struct(">hi")
_ROW_START = Struct(">ihq")


class Client:
    """Knows who leads from whichever broker it asks: perhaps an old story.

    Where leaders change while they live, because replicas are moved, it is a client of today: it believes the newest
    leader epoch that it has heard of, and says it when it fetches. A leader that does not know yet that it was replaced
    tells an older client that what it has read from the next one is out of range; Kafka's do, too.
    """

    def __init__(self, world: "ClusterWorld", number: int) -> None:
        self.world = world
        self.network: SimNetwork = world.network
        self.random: Random = world.random
        self.number = CLIENT + number
        self._peers: dict[int, Any] = {}
        self._newest: dict[int, tuple[int, int]] = {}  # by partition: leader epoch and leader

    async def run(self, until: Until) -> None:
        raise NotImplementedError

    async def pause(self, seconds_max: float) -> None:
        await asyncio.sleep(self.random.random() * seconds_max)

    def leader_of(self, index: int) -> int | None:
        brokers = [node.broker for node in self.world.nodes if node.broker is not None]
        if not brokers:
            return None
        topic = self.random.choice(brokers).image.topics.get(TOPIC)
        state = None if topic is None else topic.partitions[index]
        epoch, leader = (-1, -1) if state is None else (state.leader_epoch, state.leader)
        if self.world.moves_replicas:
            epoch, leader = self._newest[index] = max(self._newest.get(index, (-1, -1)), (epoch, leader))
        return leader if leader > 0 else None

    def epoch_of(self, index: int) -> int:
        """Of the leader; -1 for a client that does not ask for it."""
        return self._newest.get(index, (-1, -1))[0]

    async def ask(self, node: int, frame: bytes, patience_s: float = PATIENCE_S) -> memoryview:
        if node not in self._peers:
            self._peers[node] = self.network.connect(self.number, node)
        try:
            async with asyncio.timeout(patience_s):
                answer: memoryview = await self._peers[node].exchange(frame)
                return answer
        except (ConnectionLost, TimeoutError) as error:
            self._peers.pop(node).close()
            raise ConnectionLost("no answer") from error


class ProducerClient(Client):
    def __init__(self, world: "ClusterWorld", number: int) -> None:
        super().__init__(world, number)
        self._producer_id = self._next_id()
        self._sequences: dict[int, int] = {}

    def _next_id(self) -> int:
        self.world.producer_ids += 1
        return self.world.producer_ids

    async def run(self, until: Until) -> None:
        while not until():
            await self.pause(0.15)
            index = self.random.randrange(self.world.partition_count)
            values = [self.world.new_value() for _ in range(self.random.randrange(1, 4))]
            if not await self._send(index, values):
                # Whether it was written is unknown: as a real client, go on with another member id.
                self._producer_id = self._next_id()
                self._sequences = {}

    async def _send(self, index: int, values: list[str]) -> bool:
        sequence = self._sequences.get(index, 0)
        weeks = self.world.weeks
        for _ in range(self.random.choice([1, 5, 20])):
            if self.world.weeks != weeks:
                return False  # as with delivery.timeout.ms: nothing is tried again for days
            outcome = await self._try(index, values, sequence)
            if outcome is not None:
                self._sequences[index] = sequence + len(values)
                return outcome
            await self.pause(0.3)
        return False

    async def _try(self, index: int, values: list[str], sequence: int) -> bool | None:
        """True: acknowledged. False: refused for good. None: nobody knows, try again."""
        leader = self.leader_of(index)
        if leader is None:
            return None
        timestamp = self.world.record_ms()
        batch = build_batch(
            [NewRecord(timestamp, None, value.encode()) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        try:
            row = produce_row(await self.ask(leader, produce_frame(index, batch)))
        except ConnectionLost:
            return None
        if row.error == ErrorCode.NONE:
            self.world.acknowledged(index, row.base_offset, values, leader)
            return True
        if row.error in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH):
            return False
        return None


class ConsumerClient(Client):
    async def run(self, until: Until) -> None:
        positions = dict.fromkeys(range(self.world.partition_count), 0)
        while not until():
            await self.pause(0.3)
            index = self.random.randrange(self.world.partition_count)
            if self.random.random() < 0.1:
                positions[index] = 0
            positions[index] = await self._poll(index, positions[index])

    async def _poll(self, index: int, position: int) -> int:
        leader = self.leader_of(index)
        topic_id = self.world.topic_id
        if leader is None or topic_id is None:
            return position
        wanted = {(topic_id, index): WantedPartition(self.epoch_of(index), position, -1, -1, 1 << 20)}
        request = ReplicaFetch(-1, -1, 100, 1, 1 << 20, 0, -1, wanted, ())
        try:
            fetched = decode_response(await self.ask(leader, encode_request(request, 1, "consumer")))
        except ConnectionLost:
            return position
        for row in fetched.rows:
            if row.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise HistoryChanged(f"{TOPIC}-{index}: offset {position} was read, and is out of range now")
            for offset, value in values_in(row.records):
                self.world.read(index, offset, value)
            for _, header in walk(row.records):
                position = max(position, header.next_offset)
        return position


class ProduceRow(NamedTuple):
    error: int
    base_offset: int


def produce_frame(
    index: int,
    batch: bytes,
    version: int = PRODUCE_VERSION,
    transactional_id: str | None = None,
    topic: bytes | None = None,
) -> bytes:
    """A Produce for one partition, with acks=all; `topic` is an id, for the versions that have one."""
    body = bytearray(REQUEST_HEADER.pack(ApiKey.PRODUCE, version, 1) + string("producer", False) + EMPTY_TAGS)
    body += nullable_string(transactional_id, True) + _ACKS_AND_TIMEOUT.pack(-1, PRODUCE_TIMEOUT_MS)
    body += array_length(1, True) + (string(TOPIC, True) if topic is None else topic)
    body += array_length(1, True) + INT32.pack(index) + uvarint(len(batch) + 1) + batch
    body += EMPTY_TAGS * 3
    return INT32.pack(len(body)) + bytes(body)


def produce_row(answer: memoryview, topic: bytes | None = None) -> ProduceRow:
    reader = Reader(answer, INT32.size, flexible=True)
    reader.skip_tags()
    assert len(reader.array(1)) == 1
    named = reader.string() == TOPIC if topic is None else reader.uuid().bytes == topic
    assert named, "the row is about the topic of the request"
    assert len(reader.array(1)) == 1
    _, error, base_offset = reader.numbers(_ROW_START)
    return ProduceRow(error, base_offset)
