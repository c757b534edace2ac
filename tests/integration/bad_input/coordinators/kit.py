"""A client without manners: sends any request of any version with any content, and shows the codes that come back."""

import time
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position

from headrace.client.sync.transport import Connection
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import message_class
from headrace.records.builder import NewRecord, build_batch
from headrace.testing import LocalBroker
from tests.integration.raw import SECONDS_MAX
from tests.unit.broker.handlers.handler_kit import build

MIB = 1024 * 1024
SESSION_MS = 10_000
PARTITIONS = 3  # of the internal topics

NONE, UNKNOWN_TOPIC, MESSAGE_TOO_LARGE = 0, 3, 10
ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_MEMBER, INVALID_SESSION = 22, 23, 24, 25, 26
REBALANCE_IN_PROGRESS, INVALID_REQUEST, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE = 27, 42, 47, 48
INVALID_PRODUCER_ID_MAPPING, INVALID_TRANSACTION_TIMEOUT, OPERATION_NOT_ATTEMPTED = 49, 50, 55
GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED, FENCED_INSTANCE, PRODUCER_FENCED = 69, 79, 82, 90
UNKNOWN_TOPIC_ID, FENCED_MEMBER_EPOCH, UNSUPPORTED_ASSIGNOR, STALE_MEMBER_EPOCH = 100, 110, 112, 113
TRANSACTION_ABORTABLE, INVALID_REGEX = 120, 128


class Member(NamedTuple):
    group_id: str
    member_id: str
    generation: int


class Owner(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int


def fresh(word: str) -> str:
    return f"{word}-{uuid4().hex}"


class Stranger:
    def __init__(self, broker: LocalBroker) -> None:
        self._bootstrap = broker.bootstrap
        self._connection = Connection("127.0.0.1", broker.port, SECONDS_MAX)

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, api: ApiKey, version: int | None = None, **fields: Any) -> Any:
        version = SERVED[api].highest if version is None else version
        request = build(message_class(api, version, "request"), fields)
        return self._connection.call(request, message_class(api, version, "response"))

    def code(self, api: ApiKey, version: int | None = None, **fields: Any) -> int:
        """The error of a response that has one for all."""
        return int(self.ask(api, version, **fields).error_code.value)

    # Groups

    def find_coordinators(self) -> None:
        for key_type in (0, 1):
            self.ask(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=("any",))

    def create_topic(self) -> str:
        topic = fresh("t")
        self.ask(
            ApiKey.CREATE_TOPICS, topics=[{"name": topic, "num_partitions": 1, "replication_factor": 1}], timeout=5000
        )
        return topic

    def join(self, group_id: str, **fields: Any) -> Any:
        """JoinGroup as it is sent, with what a request must have."""
        given = {
            "group_id": group_id,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": SESSION_MS,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
        }
        version = fields.pop("version", None)
        return self.ask(ApiKey.JOIN_GROUP, version, **{**given, **fields})

    def joined(self, group_id: str | None = None, **fields: Any) -> Member:
        """A member that has joined as clients do, and leads a group of its own."""
        group_id = fresh("g") if group_id is None else group_id
        first = self.join(group_id, **fields)
        assert first.error_code.value == MEMBER_ID_REQUIRED, first
        answer = self.join(group_id, **{**fields, "member_id": first.member_id})
        assert answer.error_code.value == NONE, answer
        return Member(group_id, answer.member_id, answer.generation_id)

    def sync(self, member: Member, assignments: dict[str, bytes], **fields: Any) -> Any:
        given = {
            "group_id": member.group_id,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "assignments": [{"member_id": name, "assignment": share} for name, share in assignments.items()],
        }
        return self.ask(ApiKey.SYNC_GROUP, **{**given, **fields})

    def stable(self, **fields: Any) -> Member:
        member = self.joined(**fields)
        assert self.sync(member, {member.member_id: b"share"}).error_code.value == NONE
        return member

    def heartbeat_code(self, member: Member) -> int:
        return self.code(
            ApiKey.HEARTBEAT,
            group_id=member.group_id,
            generation_id=member.generation,
            member_id=member.member_id,
        )

    def leave(self, member: Member) -> int:
        answer = self.ask(
            ApiKey.LEAVE_GROUP, group_id=member.group_id, members=[{"member_id": member.member_id}], version=None
        )
        return int((answer.members[0] if answer.members else answer).error_code.value)

    def commit_code(
        self, group_id: str, topic: str, *, offset: int = 5, member_id: str = "", generation: int = -1, note: str = ""
    ) -> int:
        """OffsetCommit by name (version 9), one partition."""
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": note}
        answer = self.ask(
            ApiKey.OFFSET_COMMIT,
            9,
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[{"name": topic, "partitions": [row]}],
        )
        return int(answer.topics[0].partitions[0].error_code.value)

    def committed(self, group_id: str, topic: str) -> int:
        wish = {"group_id": group_id, "topics": [{"name": topic, "partition_indexes": (0,)}]}
        (group,) = self.ask(ApiKey.OFFSET_FETCH, 9, groups=[wish], require_stable=False).groups
        assert group.error_code.value == NONE, group
        return int(group.topics[0].partitions[0].committed_offset)

    def groups(self) -> set[str]:
        return {row.group_id for row in self.ask(ApiKey.LIST_GROUPS).groups}

    def is_forgotten(self, group_id: str) -> bool:
        """Waits for the end of a group that nobody is in."""
        deadline = time.monotonic() + SECONDS_MAX
        while group_id in self.groups():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def is_in_a_log(self, name: str) -> bool:
        """Whether a group or a transactional id has left a trace in the coordinators' logs."""
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        topics = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
        consumer.assign([Position(topic, index, 0) for topic in topics for index in range(PARTITIONS)])
        ends, found = 0, False
        while ends < PARTITIONS * len(topics):
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, "the logs can be read to their ends"
            if message.error() is not None:
                ends += 1
            else:
                found |= name.encode() in (message.key() or b"") + (message.value() or b"")
        consumer.close()
        return found

    # Transactions

    def init(self, transactional_id: str | None = None, timeout_ms: int = 60_000, **fields: Any) -> Owner:
        transactional_id = fresh("x") if transactional_id is None else transactional_id
        answer = self.ask(
            ApiKey.INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout=timeout_ms, **fields
        )
        assert answer.error_code.value == NONE, answer
        return Owner(transactional_id, answer.producer_id, answer.producer_epoch)

    def add_codes(self, owner: Owner, *topics: str, version: int = 3) -> list[int]:
        """AddPartitionsToTxn, as clients of the older protocol send it."""
        answer = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=owner.transactional_id,
            v3_and_below_producer_id=owner.producer_id,
            v3_and_below_producer_epoch=owner.producer_epoch,
            v3_and_below_topics=[{"name": topic, "partitions": (0,)} for topic in topics],
        )
        rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
        return [row.partition_error_code.value for row in rows]

    def end_code(self, owner: Owner, *, commit: bool = True, version: int = 4) -> int:
        return self.code(ApiKey.END_TXN, version, **owner._asdict(), committed=commit)

    def produce_code(self, owner: Owner, topic: str, value: bytes = b"v", sequence: int = 0, version: int = 11) -> int:
        records = build_batch(
            [NewRecord(1_700_000_000_000, b"k", value)],
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        from kio.schema.produce.v11.request import ProduceRequest
        from kio.schema.produce.v11.response import ProduceResponse

        rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
        fields = {"transactional_id": owner.transactional_id, "acks": -1, "timeout": 5000, "topic_data": rows}
        answer = self._connection.call(build(ProduceRequest, fields), ProduceResponse)
        return int(answer.responses[0].partition_responses[0].error_code.value)

    def stable_end(self, topic: str) -> int:
        """The last stable offset of a partition: what holds readers back shows here."""
        rows = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        answer = self.ask(ApiKey.LIST_OFFSETS, 9, replica_id=-1, isolation_level=1, topics=rows)
        return int(answer.topics[0].partitions[0].offset)
