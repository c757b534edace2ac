"""Clients of a simulated cluster, and what they were told: producers with idempotence, consumers, and a ledger.

The ledger knows, for each partition, which value was acknowledged or read at which offset. Whatever contradicts that
later is a broken promise.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.partition import Partition
from headrace.client.peer import PeerLost
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.frames import REQUEST_HEADER
from headrace.protocol.replica_fetch import ReplicaFetch, WantedPartition, decode_response, encode_request
from headrace.protocol.wire import EMPTY_TAGS, INT32, Reader, array_length, nullable_string, string, uvarint
from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.records.record import decode_records
from headrace.testing.sim_network import SimNetwork

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

CLIENT = 100  # the number of the first client in the network
PATIENCE_S = 3.0
TOPIC = "t"
PRODUCE_VERSION = 9
PRODUCE_TIMEOUT_MS = 5000
_ACKS_AND_TIMEOUT = Struct(">hi")
_ROW_START = Struct(">ihq")


class BrokenPromise(AssertionError):
    """What no fault may cause has happened."""


@dataclass
class Ledger:
    """What clients of one partition know for certain."""

    acked: dict[int, str] = field(default_factory=dict)  # by offset
    seen: dict[int, str] = field(default_factory=dict)

    def certain(self) -> dict[int, str]:
        return {**self.acked, **self.seen}

    def acked_at(self, offset: int, value: str) -> None:
        self._agree(self.acked, offset, value, "acknowledged")
        self._agree(self.seen, offset, value, "acknowledged", note=False)

    def read(self, offset: int, value: str) -> None:
        self._agree(self.seen, offset, value, "read")
        self._agree(self.acked, offset, value, "read", note=False)

    @staticmethod
    def _agree(known: dict[int, str], offset: int, value: str, how: str, *, note: bool = True) -> None:
        if known.get(offset, value) != value:
            raise BrokenPromise(f"{value!r} was {how} at offset {offset}, where {known[offset]!r} was before")
        if note:
            known[offset] = value

    def check_log(self, values: dict[int, str], whose: str) -> None:
        for offset, value in self.certain().items():
            if values.get(offset) != value:
                raise BrokenPromise(f"{whose} has {values.get(offset)!r} at offset {offset}, not {value!r}")


def values_of(partition: Partition) -> dict[int, str]:
    """Everything in a log, by offset."""
    values: dict[int, str] = {}
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20, log.log_end_offset)
        if piece is None:
            break
        data = memoryview(piece.read())
        for position, header in walk(data):
            for record in decode_records(data[position : position + header.total_bytes], header):
                values[record.offset] = (record.value or b"").decode()
            offset = header.next_offset
    return values


class Client:
    """Knows who leads from whichever broker it asks: perhaps an old story."""

    def __init__(self, world: "ClusterWorld", number: int) -> None:
        self.world = world
        self.network: SimNetwork = world.network
        self.random: Random = world.random
        self.number = CLIENT + number
        self._peers: dict[int, Any] = {}

    def leader_of(self, index: int) -> int | None:
        brokers = [node.broker for node in self.world.nodes if node.broker is not None]
        if not brokers:
            return None
        topic = self.random.choice(brokers).image.topics.get(TOPIC)
        leader = topic.partitions[index].leader if topic is not None else -1
        return leader if leader > 0 else None

    async def ask(self, node: int, frame: bytes) -> memoryview:
        if node not in self._peers:
            self._peers[node] = self.network.connect(self.number, node)
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer: memoryview = await self._peers[node].exchange(frame)
                return answer
        except (PeerLost, TimeoutError) as error:
            self._peers.pop(node).close()
            raise PeerLost("no answer") from error


class ProducerClient(Client):
    def __init__(self, world: "ClusterWorld", number: int) -> None:
        super().__init__(world, number)
        self._producer_id = self._next_id()
        self._sequences: dict[int, int] = {}

    def _next_id(self) -> int:
        self.world.producer_ids += 1
        return self.world.producer_ids

    async def run(self, until: Callable[[], bool]) -> None:
        while not until():
            await asyncio.sleep(self.random.random() * 0.15)
            index = self.random.randrange(self.world.partition_count)
            values = [self.world.new_value() for _ in range(self.random.randrange(1, 4))]
            if not await self._send(index, values):
                # Whether it was written is unknown: as a real client, go on as somebody else.
                self._producer_id = self._next_id()
                self._sequences = {}

    async def _send(self, index: int, values: list[str]) -> bool:
        sequence = self._sequences.get(index, 0)
        for _ in range(self.random.choice([1, 5, 20])):
            outcome = await self._try(index, values, sequence)
            if outcome is not None:
                self._sequences[index] = sequence + len(values)
                return outcome
            await asyncio.sleep(self.random.random() * 0.3)
        return False

    async def _try(self, index: int, values: list[str], sequence: int) -> bool | None:
        """True: acknowledged. False: refused for good. None: nobody knows, try again."""
        leader = self.leader_of(index)
        if leader is None:
            return None
        timestamp = self.world.wall_ms()
        batch = build_batch(
            [NewRecord(timestamp, None, value.encode()) for value in values],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        try:
            row = _produce_row(await self.ask(leader, _produce_frame(index, batch)))
        except PeerLost:
            return None
        if row.error == ErrorCode.NONE:
            self.world.acknowledged(index, row.base_offset, values, leader)
            return True
        if row.error in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH):
            return False
        return None


class ConsumerClient(Client):
    async def run(self, until: Callable[[], bool]) -> None:
        positions = dict.fromkeys(range(self.world.partition_count), 0)
        while not until():
            await asyncio.sleep(self.random.random() * 0.3)
            index = self.random.randrange(self.world.partition_count)
            if self.random.random() < 0.1:
                positions[index] = 0
            positions[index] = await self._poll(index, positions[index])

    async def _poll(self, index: int, position: int) -> int:
        leader = self.leader_of(index)
        topic_id = self.world.topic_id
        if leader is None or topic_id is None:
            return position
        wanted = {(topic_id, index): WantedPartition(-1, position, -1, -1, 1 << 20)}
        request = ReplicaFetch(-1, -1, 100, 1, 1 << 20, 0, -1, wanted, ())
        try:
            fetched = decode_response(await self.ask(leader, encode_request(request, 1, "consumer")))
        except PeerLost:
            return position
        for row in fetched.rows:
            if row.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise BrokenPromise(f"{TOPIC}-{index}: offset {position} was read, and is out of range now")
            for at, header in walk(row.records):
                for record in decode_records(row.records[at : at + header.total_bytes], header):
                    self.world.read(index, record.offset, (record.value or b"").decode())
                position = max(position, header.next_offset)
        return position


class ProduceRow(NamedTuple):
    error: int
    base_offset: int


def _produce_frame(index: int, batch: bytes) -> bytes:
    """A Produce for one partition, with acks=all."""
    body = bytearray(REQUEST_HEADER.pack(ApiKey.PRODUCE, PRODUCE_VERSION, 1) + string("producer", False) + EMPTY_TAGS)
    body += nullable_string(None, True) + _ACKS_AND_TIMEOUT.pack(-1, PRODUCE_TIMEOUT_MS)
    body += array_length(1, True) + string(TOPIC, True)
    body += array_length(1, True) + INT32.pack(index) + uvarint(len(batch) + 1) + batch
    body += EMPTY_TAGS * 3
    return INT32.pack(len(body)) + bytes(body)


def _produce_row(answer: memoryview) -> ProduceRow:
    reader = Reader(answer, INT32.size, flexible=True)
    reader.skip_tags()
    assert len(reader.array(1)) == 1
    assert reader.string() == TOPIC
    assert len(reader.array(1)) == 1
    _, error, base_offset = reader.numbers(_ROW_START)
    return ProduceRow(error, base_offset)
