"""Positions in partitions: ListOffsets, DeleteRecords, OffsetForLeaderEpoch, DescribeProducers."""

from typing import Any

from tests.golden.batches import (
    CREATE_TIME_MS,
    batch,
)
from tests.golden.conversation import SECOND, Conversation
from tests.golden.messages import Values
from tests.golden.scripts.common import (
    DELETE_RECORDS,
    DESCRIBE_PRODUCERS,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    create_topic,
    create_topic_twice,
    end_transaction,
    find_coordinator,
    init_producer,
    open_transaction,
    produce,
    script,
)

# A short request of another API, to see that responses keep their order.
NO_TOPICS: Values = {"topics": []}


@script(LIST_OFFSETS)
def list_offsets_script(c: Conversation) -> None:
    create_topic(c, "t", 3)
    produce(c, "t", batch("a", timestamp=1000))
    produce(c, "t", batch("b", timestamp=3000))
    produce(c, "t", batch("c", timestamp=2000))
    produce(c, "t", batch("d", timestamp=1000), 1)

    def of(*rows: tuple[int, int], topic: str = "t", epoch: int = -1, **more: Any) -> dict[str, Any]:
        partitions = [
            {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
            for index, timestamp in rows
        ]
        return {"replica_id": -1, "timeout": 1000, "topics": [{"name": topic, "partitions": partitions}], **more}

    c.ok("latest", **of((0, -1)))
    c.ok("latest, repeated", **of((0, -1)))
    c.ok("earliest", **of((0, -2)))
    for name, timestamp in {
        "the largest timestamp": -3,
        "earliest local": -4,
        "latest tiered": -5,
        "earliest to be uploaded": -6,
        "a number that means nothing": -7,
    }.items():
        c.any(name, **of((0, timestamp)))
    c.ok("a timestamp that is there", **of((0, 3000)))
    c.ok("a timestamp in between", **of((0, 1500)))
    c.ok("a timestamp behind all", **of((0, 9999)))
    c.ok("timestamp 0", **of((0, 0)))
    c.ok("an empty partition", **of((2, -1)))
    c.ok("an empty partition by time", **of((2, 1)))
    c.any("the largest timestamp of an empty partition", **of((2, -3)))
    c.ok("several partitions", **of((0, -1), (1, -1), (2, -2)))
    c.error("a partition twice", **of((0, -1), (0, -2), (1, -1)))
    c.error("unknown partition", **of((0, -1), (9, -1)))
    c.error("unknown topic", **of((0, -1), topic="missing"))
    c.error("a topic name that cannot be", **of((0, -1), topic="not/a/name"))
    c.any("a leader epoch of the future", **of((0, -1), epoch=9))
    c.any("the leader epoch", **of((0, -1), epoch=0))
    create_topic_twice(c, "renewed")
    c.any("a leader epoch of the past", **of((0, -1), epoch=0, topic="renewed"))
    c.ok("the later leader epoch", **of((0, -1), epoch=1, topic="renewed"))
    c.any("a replica asks", **of((0, -1), replica_id=5))
    c.any("the debugging replica asks", **of((0, -1), replica_id=-2))
    c.together("two in one read", of((0, -1)), of((1, -2)))
    producer = open_transaction(c, "tx", "t", "open", index=1)
    c.ok("read committed with an open transaction", **of((1, -1), isolation_level=1))
    c.ok("read uncommitted with an open transaction", **of((1, -1), isolation_level=0))
    c.any("read committed by time with an open transaction", **of((1, CREATE_TIME_MS), isolation_level=1))
    end_transaction(c, "tx", producer, commit=True)
    c.ok("read committed after its end", **of((1, -1), isolation_level=1))
    c.arrange(
        DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}], timeout=1000
    )
    c.ok("earliest after records were deleted", **of((0, -2)))
    c.ok("a timestamp of deleted records", **of((0, 1000)))


@script(LIST_OFFSETS, "on a slow disk", wait_until_flushed=True)
def list_offsets_on_disk(c: Conversation) -> None:
    create_topic(c, "t")
    fields = {
        "acks": 1,
        "timeout": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch("a")}]}],
    }
    row = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    asked = {"replica_id": -1, "topics": [{"name": "t", "partitions": [row]}], "timeout": 1000}
    c.together_of_several_apis(
        "waits for what was acknowledged", (PRODUCE, 9, fields), (LIST_OFFSETS, c.version, asked), wait_ms=20
    )
    c.broker.sync_ms = 5 * SECOND
    c.together_of_several_apis(
        "does not wait longer than it may", (PRODUCE, 9, fields), (LIST_OFFSETS, c.version, asked), wait_ms=5 * SECOND
    )
    c.broker.pass_time(10 * SECOND)
    c.ok("in the end", **asked)


@script(DELETE_RECORDS)
def delete_records_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    for value in "abc":
        produce(c, "t", batch(value, value))

    def of(*rows: tuple[int, int], topic: str = "t") -> dict[str, Any]:
        partitions = [{"partition_index": index, "offset": offset} for index, offset in rows]
        return {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1000}

    c.ok("in the middle of a batch", wait_ms=50, **of((0, 1)))
    c.ok("the same again", wait_ms=50, **of((0, 1)))
    c.ok("before the start", wait_ms=50, **of((0, 0)))
    c.error("beyond the end", wait_ms=50, **of((0, 7)))
    c.error("a negative offset", wait_ms=50, **of((0, -2)))
    c.error("unknown partition", wait_ms=50, **of((0, 2), (5, 0)))
    c.error("unknown topic", wait_ms=50, **of((0, 0), topic="missing"))
    c.any("a partition twice", wait_ms=50, **of((0, 2), (0, 3)))
    find_coordinator(c, "g")
    c.error("an internal topic", wait_ms=50, **of((0, 0), topic="__consumer_offsets"))
    create_topic(c, "compacted", cleanup_policy="compact")
    c.error("a compacted topic", wait_ms=50, **of((0, 0), topic="compacted"))
    c.ok("an empty partition", wait_ms=50, **of((1, -1)))
    c.ok("everything", wait_ms=50, **of((0, -1)))


@script(OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    produce(c, "t", batch("a", "b"))

    def of(index: int = 0, epoch: int = 0, current: int = -1, topic: str = "t", replica_id: int = -1) -> dict[str, Any]:
        row = {"partition": index, "leader_epoch": epoch, "current_leader_epoch": current}
        return {"replica_id": replica_id, "topics": [{"topic": topic, "partitions": [row]}]}

    c.ok("the epoch", **of())
    c.ok("the epoch, repeated", **of())
    c.any("an epoch of the future", **of(epoch=4))
    c.any("an epoch before all", **of(epoch=-1))
    c.ok("an empty partition", **of(1))
    c.ok("the current leader epoch", **of(current=0))
    c.error("a current leader epoch of the future", **of(current=3))
    create_topic_twice(c, "renewed")
    c.error("a current leader epoch of the past", **of(current=0, topic="renewed"))
    c.any("an epoch of the topic before", **of(epoch=0, current=1, topic="renewed"))
    c.ok("the epoch of the topic", **of(epoch=1, current=1, topic="renewed"))
    c.error("unknown partition", **of(7))
    c.error("unknown topic", **of(topic="missing"))
    c.any("a replica asks", **of(replica_id=5))
    c.ok("the debugging replica asks", **of(replica_id=-2))


@script(DESCRIBE_PRODUCERS)
def describe_producers_script(c: Conversation) -> None:
    create_topic(c, "t", 2)

    def of(*indexes: int, topic: str = "t") -> dict[str, Any]:
        return {"topics": [{"name": topic, "partition_indexes": list(indexes)}]}

    c.ok("none", **of(0))
    mine = init_producer(c)
    produce(c, "t", batch("a", "b", producer=mine, sequence=0))
    producer = open_transaction(c, "tx", "t", "open")
    c.ok("one idempotent, one transactional", **of(0, 1))
    end_transaction(c, "tx", producer, commit=True)
    c.ok("after the end of the transaction", **of(0))
    c.error("unknown partition", **of(0, 8))
    c.error("unknown topic", **of(0, topic="missing"))
    c.error("a topic name that cannot be", **of(0, topic="not/a/name"))
    c.any("a partition twice", **of(1, 1))
