"""A transactional producer that speaks `transaction.version` 2 (KIP-890), which no client from PyPI does yet.

Partitions and offsets are added to the transaction by the requests that write them, and each end brings a new epoch.
Its face is that of confluent-kafka's producer, as far as a worker needs it. A request without an answer is repeated on
a new connection: each of them may be, and that they may is part of what is tested.
"""

import time
from collections import defaultdict
from importlib import import_module
from struct import unpack_from
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from headrace.client.librdkafka import BrokerUnreachable
from headrace.client.sync.transport import Connection
from headrace.model.errors import ErrorCode
from headrace.records.builder import NewRecord, build_batch
from tests.unit.broker.handlers.handler_kit import build

TRY_AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
PAUSE_S = 0.02


class Refused(Exception):
    """The broker's no: this producer is of no use any more."""


class GroupMember(NamedTuple):
    group_id: str
    generation: int
    member_id: str


def group_member(metadata: bytes) -> GroupMember:
    """What librdkafka's opaque group metadata says: a mark, the generation, then names that end with a zero byte."""
    mark = b"CGMDv2:"
    assert metadata.startswith(mark), metadata
    (generation,) = unpack_from("=i", metadata, len(mark))
    group_id, member_id, _ = metadata[len(mark) + 4 :].split(b"\0", 2)
    return GroupMember(group_id.decode(), generation, member_id.decode())


class TransactionalProducerV2:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        host, port = bootstrap.split(":")
        self._address = host, int(port)
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._connection: Connection | None = None
        self._owner = {"producer_id": -1, "producer_epoch": -1}
        self._pending: dict[tuple[str, int], list[NewRecord]] = defaultdict(list)
        self._sequences: dict[tuple[str, int], int] = defaultdict(int)

    def init_transactions(self, seconds_max: float) -> None:
        self._ask("find_coordinator.v6", seconds_max, key_type=1, coordinator_keys=(self._transactional_id,))
        named = {"transactional_id": self._transactional_id, "transaction_timeout": self._timeout_ms}
        self._own(self._ask("init_producer_id.v5", seconds_max, **named, **self._owner))

    def begin_transaction(self) -> None:
        self._pending.clear()

    def produce(self, topic: str, value: bytes, key: bytes, *, partition: int) -> None:
        self._pending[(topic, partition)].append(NewRecord(int(time.time() * 1000), key, value))

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], metadata: bytes, seconds_max: float) -> None:
        self._write(seconds_max)
        member = group_member(metadata)
        by_topic = defaultdict(list)
        for one in offsets:
            by_topic[one.topic].append(
                {"partition_index": one.partition, "committed_offset": one.offset, "committed_metadata": ""}
            )
        topics = [{"name": topic, "partitions": rows} for topic, rows in by_topic.items()]
        self._ask(
            "txn_offset_commit.v5",
            seconds_max,
            transactional_id=self._transactional_id,
            **self._owner,
            group_id=member.group_id,
            generation_id=member.generation,
            member_id=member.member_id,
            topics=topics,
        )

    def commit_transaction(self, seconds_max: float) -> None:
        self._write(seconds_max)
        self._end(seconds_max, commit=True)

    def abort_transaction(self, seconds_max: float) -> None:
        self._pending.clear()
        self._end(seconds_max, commit=False)

    def _end(self, seconds_max: float, *, commit: bool) -> None:
        named = {"transactional_id": self._transactional_id, **self._owner}
        self._own(self._ask("end_txn.v5", seconds_max, **named, committed=commit))

    def _own(self, answer: Any) -> None:
        self._owner = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        self._sequences.clear()  # they are counted anew in each epoch

    def _write(self, seconds_max: float) -> None:
        for (topic, partition), records in self._pending.items():
            sequence = self._sequences[(topic, partition)]
            batch = build_batch(records, **self._owner, base_sequence=sequence, transactional=True)
            rows = [{"index": partition, "records": batch}]
            topics = [{"name": topic, "partition_data": rows}]
            named = {"transactional_id": self._transactional_id}
            self._ask("produce.v12", seconds_max, **named, acks=-1, timeout=5_000, topic_data=topics)
            self._sequences[(topic, partition)] = sequence + len(records)
        self._pending.clear()

    def _ask(self, message: str, seconds_max: float, **fields: Any) -> Any:
        """The answer, if it is a yes. Asks again as long as there is none, or one that says "not now"."""
        request_type, response_type = message_type(message, "request"), message_type(message, "response")
        request = build(request_type, fields)
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                answer = self._connected().call(request, response_type)
                codes = set(error_codes(answer))
                if not codes:
                    return answer
                if not codes <= TRY_AGAIN:
                    raise Refused(f"{message}: {codes}")
            except (OSError, BrokerUnreachable):
                self._connection = None
            if time.monotonic() > deadline:
                raise TimeoutError(message)
            time.sleep(PAUSE_S)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(*self._address, timeout_s=10.0)
        return self._connection


def message_type(name: str, direction: str) -> type[Any]:
    words = "".join(word.capitalize() for word in name.split(".")[0].split("_"))
    found: type[Any] = getattr(import_module(f"kio.schema.{name}.{direction}"), words + direction.capitalize())
    return found


def error_codes(answer: Any) -> list[int]:
    """Every error in an answer: its own, or those of its partitions."""
    if hasattr(answer, "error_code"):
        rows = [answer]
    elif hasattr(answer, "coordinators"):
        rows = list(answer.coordinators)
    elif hasattr(answer, "responses"):
        rows = [row for topic in answer.responses for row in topic.partition_responses]
    else:
        rows = [row for topic in answer.topics for row in topic.partitions]
    return [row.error_code.value for row in rows if row.error_code.value]
