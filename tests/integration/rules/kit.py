"""A broker in this process and a client without any comfort: frames in kio's bytes, answers in kio's objects.

The second opinion on every byte is kio's: none of the broker's own codecs is used on this side of the socket.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from struct import pack, unpack
from typing import Any

from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.store import Store
from headrace.process.runtime import SystemClock
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import message_class
from headrace.protocol.schema import FieldSchema, describe
from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.records.record import decode_records
from headrace.storage.io.file_system import FileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.testing import SimFiles
from tests.unit.protocol.kio_messages import kio_bytes, kio_read

SECONDS_MAX = 20
NOW_MS = 1_700_000_000_000


class SlowDisk(SimFiles):
    """A disk whose syncs of logs wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def reach(self, operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            assert self.may_sync.wait(SECONDS_MAX)
        super().reach(operation, path)


@asynccontextmanager
async def running(
    files: FileSystem | None = None, store: Store | None = None, configs: Mapping[str, str] | None = None
) -> AsyncIterator[Broker]:
    """A broker on a free port: in memory, or on the disk that is handed in."""
    settings = Settings(
        listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),),
        data_dir="/data",
        storage="memory" if files is None else "disk",
        broker_configs=dict(configs or {}),
    )
    clock = SystemClock()
    broker = Broker(settings, clock, files or MemoryFiles(), store or MemoryStore(clock))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class Client:
    """One connection. Requests may be sent without waiting; answers are read in their order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._next_id = 0
        self._sent: list[tuple[int, ApiKey, int]] = []

    @classmethod
    @asynccontextmanager
    async def of(cls, broker: Broker) -> AsyncIterator["Client"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.server.bound["PLAINTEXT"].port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    def send(self, api: ApiKey, version: int | None = None, *, is_answered: bool = True, **fields: Any) -> None:
        version = SERVED[api].highest if version is None else version
        request = message_of(message_class(api, version, "request"), fields)
        self.send_bytes(api, version, kio_bytes(request), is_answered=is_answered)

    def send_bytes(self, api: int, version: int, body: bytes, *, is_answered: bool = True) -> None:
        self._next_id += 1
        header = pack(">hhih", api, version, self._next_id, 4) + b"test"
        if api in SERVED and version >= SERVED[ApiKey(api)].first_flexible:
            header += b"\0"
        self._writer.write(pack(">i", len(header) + len(body)) + header + body)
        if is_answered:
            self._sent.append((self._next_id, ApiKey(api), version))

    async def receive_bytes(self) -> bytes:
        """The next answer without its length."""
        async with asyncio.timeout(SECONDS_MAX):
            size = unpack(">i", await self._reader.readexactly(4))[0]
            return await self._reader.readexactly(size)

    async def receive(self) -> Any:
        """The answer to the oldest request that has none yet; fails if it is somebody else's."""
        frame = await self.receive_bytes()
        correlation_id, api, version = self._sent.pop(0)
        assert unpack(">i", frame[:4])[0] == correlation_id, "answers come in the order of their requests"
        start = 4
        if version >= SERVED[api].first_flexible and api is not ApiKey.API_VERSIONS:
            assert frame[4] == 0, "no tagged fields in the header"
            start = 5
        return kio_read(message_class(api, version, "response"), frame[start:])

    async def ask(self, api: ApiKey, version: int | None = None, **fields: Any) -> Any:
        self.send(api, version, **fields)
        return await self.receive()

    async def is_closed(self) -> bool:
        """Waits for the end of the connection; False if an answer comes instead."""
        try:
            async with asyncio.timeout(SECONDS_MAX):
                return await self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def has_nothing(self, seconds: float = 0.05) -> bool:
        """Nothing comes for a while: the only way to see that something does not happen."""
        await asyncio.sleep(seconds)
        return not self._reader._buffer  # type: ignore[attr-defined]

    # What most tests ask

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        answer = await self.ask(ApiKey.CREATE_TOPICS, topics=[topic])
        assert answer.topics[0].error_code == 0, answer
        return answer.topics[0].topic_id

    def send_produce(
        self,
        topic: str,
        *batches: bytes | None,
        index: int = 0,
        acks: int = -1,
        version: int = 12,
        topic_id: object = None,
        timeout_ms: int = 10_000,
    ) -> None:
        partitions = [{"index": index + number, "records": batch} for number, batch in enumerate(batches)]
        named = {"topic_id": topic_id} if version >= 13 else {"name": topic}
        self.send(
            ApiKey.PRODUCE,
            version,
            is_answered=acks != 0,
            acks=acks,
            timeout=timeout_ms,
            topic_data=[{**named, "partition_data": partitions}],
        )

    async def produce(self, topic: str, *batches: bytes | None, **options: Any) -> Any:
        """The row of the only partition, or the rows of several."""
        self.send_produce(topic, *batches, **options)
        rows = (await self.receive()).responses[0].partition_responses
        return rows[0] if len(batches) == 1 else rows

    def send_fetch(self, topic: str, offset: int = 0, *, index: int = 0, version: int = 12, **options: Any) -> None:
        partition = {
            "partition": index,
            "fetch_offset": offset,
            "current_leader_epoch": options.pop("leader_epoch", -1),
            "partition_max_bytes": options.pop("partition_max_bytes", 1 << 20),
        }
        if version < 9:
            del partition["current_leader_epoch"]
        topic_id = options.pop("topic_id", None)
        named = {"topic_id": topic_id} if version >= 13 else {"topic": topic}
        settings = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, **options}
        if version < 15:
            settings.setdefault("replica_id", -1)
        self.send(ApiKey.FETCH, version, topics=[{**named, "partitions": [partition]}], **settings)

    async def fetch(self, topic: str, offset: int = 0, **options: Any) -> Any:
        """The row of the only partition."""
        self.send_fetch(topic, offset, **options)
        return (await self.receive()).responses[0].partitions[0]


def message_of(message: type[Any], values: Mapping[str, Any]) -> Any:
    """One of kio's objects from plain dictionaries; what is not named has the schema's default."""
    unknown = set(values) - {field.name for field in describe(message)}
    assert not unknown, f"{message.__name__} has no {unknown}"
    return message(**{field.name: _held(field, values.get(field.name, field.default)) for field in describe(message)})


def _held(field: FieldSchema, value: Any) -> Any:
    if isinstance(value, Mapping) and field.struct is not None:
        return message_of(field.struct, value)
    if isinstance(value, list | tuple) and field.is_array:
        return tuple(_held(field, one) if isinstance(one, Mapping) else one for one in value)
    if field.kind == "timedelta_i32" and isinstance(value, int):
        return timedelta(milliseconds=value)
    return value


def batch(*values: str, timestamp: int = NOW_MS, key: bytes | None = b"k", **fields: int) -> bytes:
    """The bytes of a batch as a producer sends it."""
    records = [NewRecord(timestamp + number, key, value.encode()) for number, value in enumerate(values)]
    return build_batch(records, **fields)


BROKEN = batch("x")[:-1] + b"?"  # its checksum is of another last byte


def values(records: bytes | None) -> list[str]:
    return [record.value.decode() for record in all_records(records)]


def all_records(records: bytes | None) -> list[Any]:
    data = memoryview(records or b"")
    return [
        record for at, header in walk(data) for record in decode_records(data[at : at + header.total_bytes], header)
    ]
