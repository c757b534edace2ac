"""Produce."""

from typing import Any
from uuid import UUID

from tests.golden.batches import (
    CONTROL,
    CREATE_TIME_MS,
    GZIP,
    TRANSACTIONAL,
    ZSTD,
    batch,
    records_section,
    with_wrong_checksum,
    zstd_frame,
)
from tests.golden.conversation import SECOND, Conversation
from tests.golden.messages import Values
from tests.golden.scripts.common import (
    METADATA,
    PRODUCE,
    Topics,
    add_partitions,
    delete_topic,
    end_transaction,
    find_coordinator,
    init_producer,
    script,
)

# A short request of another API, to see that responses keep their order.
NO_TOPICS: Values = {"topics": []}


@script(PRODUCE)
def produce_script(c: Conversation) -> None:
    topics = Topics()
    topics.create(c, "t", 2)
    topics.create(c, "other")
    write, data = topics.write, topics.data

    # The same request again and again: recognised by its bytes.
    for acks, name in ((-1, "acks=all"), (1, "acks=1")):
        c.reconnect()
        c.ok(f"{name}, first", **write("t", batch("a", "b"), acks=acks))
        c.ok(f"{name}, repeated", **write("t", batch("c"), acks=acks))
        c.ok(f"{name}, repeated with more records", **write("t", batch("dd", "ee", "ff"), acks=acks))
        c.ok(f"{name}, repeated with a long value", **write("t", batch("long" * 50), acks=acks))
        c.together(f"{name}, three in one read", *(write("t", batch(value), acks=acks) for value in "xyz"))
        c.error(f"{name}, repeated with a wrong checksum", **write("t", with_wrong_checksum(batch("c")), acks=acks))
        c.together(
            f"{name}, three in one read, the second damaged",
            write("t", batch("1"), acks=acks),
            write("t", with_wrong_checksum(batch("2")), acks=acks),
            write("t", batch("3"), acks=acks),
        )
        c.ok(f"{name}, another partition", **write("t", batch("g"), 1, acks=acks))
        c.ok(f"{name}, another topic", **write("other", batch("g"), acks=acks))
        c.broker.deny()
        c.error(f"{name}, repeated when it is denied", **write("other", batch("g"), acks=acks))
        c.broker.allow_everything()
        c.together_of_several_apis(
            f"{name}, between others in one read",
            (METADATA, 1, NO_TOPICS),
            (PRODUCE, c.version, write("t", batch("h"), acks=acks)),
            (METADATA, 2, NO_TOPICS),
        )

    # No response, unless it is a closed connection.
    c.reconnect()
    c.together("acks=0, first", write("t", batch("a"), acks=0))
    c.together("acks=0, repeated", write("t", batch("b"), acks=0))
    c.together(
        "acks=0 twice and acks=1 in one read",
        write("t", batch("a"), acks=0),
        write("t", batch("b"), acks=0),
        write("t", batch("c"), acks=1),
    )
    c.error("acks=0, unknown topic", **write("missing", batch("a"), acks=0))
    c.together("acks=0 again after the close", write("t", batch("a"), acks=0))
    c.error("acks=0, wrong checksum", **write("t", with_wrong_checksum(batch("a")), acks=0))
    c.error("acks=2", **write("t", batch("a"), acks=2))

    c.ok(
        "several topics and partitions",
        **write("t", None)
        | {"topic_data": [data("t", (0, batch("a")), (1, batch("b"))), data("other", (0, batch("c")))]},
    )
    c.error(
        "one good, one unknown partition, one unknown topic",
        **write("t", None)
        | {"topic_data": [data("t", (0, batch("a")), (7, batch("b"))), data("missing", (0, batch("c")))]},
    )
    c.any("a partition twice", **write("t", None) | {"topic_data": [data("t", (0, batch("a")), (0, batch("b")))]})
    c.any("a topic without partitions", **write("t", None) | {"topic_data": [data("t")]})
    c.error("unknown topic", **write("missing", batch("a")))
    c.error("unknown partition", **write("t", batch("a"), 2))
    c.error("negative partition", **write("t", batch("a"), -1))

    # What is not one good batch
    c.error("null records", **write("t", None))
    c.error("no records", **write("t", b""))
    c.error("half a header", **write("t", batch("a")[:30]))
    c.error("a batch that ends early", **write("t", batch("abc")[:-1]))
    c.error("two batches", **write("t", batch("a") + batch("b")))
    c.error("an old record format", **write("t", batch("a", magic=1)))
    c.error("a record format of the future", **write("t", batch("a", magic=3)))
    c.error("a control batch", **write("t", batch("a", attributes=CONTROL)))
    c.error("more records than there are", **write("t", batch("a", count=2)))
    c.error("a batch without records", **write("t", batch(section=b"", count=0)))
    topics.create(c, "compacted", cleanup_policy="compact")
    c.error("no keys for a compacted topic", **write("compacted", batch("a", (b"k", b"v"), "b")))
    c.ok("keys for a compacted topic", **write("compacted", batch((b"k", b"v"), (b"gone", None))))
    topics.create(c, "small", max_message_bytes="100")
    c.error("a batch that is too large", **write("small", batch("a" * 60)))
    topics.create(c, "stamped", message_timestamp_type="LogAppendTime")
    c.ok("a topic with the time of the append", **write("stamped", batch("a")))
    c.ok("a topic with the time of the append, repeated", **write("stamped", batch("b")))
    topics.create(c, "punctual", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    c.error("records that are too old", **write("punctual", batch("a", timestamp=CREATE_TIME_MS - 1_000_000)))
    c.error("records of the future", **write("punctual", batch("a", timestamp=CREATE_TIME_MS + 1_000_000)))
    c.any("zstd", **write("t", batch("a", "b", attributes=ZSTD, section=zstd_frame(records_section("ab")))))
    c.ok("gzip that is not unpacked", **write("t", batch("a", attributes=GZIP, section=b"no gzip at all")))
    c.ok("record headers", **write("t", batch("a", headers=[("h", b"1"), ("h", b"")])))
    find_coordinator(c, "g")
    topics.ids["__consumer_offsets"] = _id_of(c, "__consumer_offsets")
    c.error("an internal topic", **write("__consumer_offsets", batch("a")))

    delete_topic(c, "other")
    c.error("a deleted topic", **write("other", batch("a")))
    topics.create(c, "other")
    c.ok("a topic that was created again", **write("other", batch("a")))


def _id_of(c: Conversation, topic: str) -> UUID:
    found: UUID = c.arrange(METADATA, 12, topics=[{"name": topic}])["topics"][0]["topic_id"]
    return found


@script(PRODUCE, "producers with ids")
def produce_with_ids(c: Conversation) -> None:
    topics = Topics()
    topics.create(c, "t", 2)
    write = topics.write
    mine = init_producer(c)

    c.reconnect()
    c.ok("sequence 0", **write("t", batch("a", "b", producer=mine, sequence=0)))
    c.ok("sequence 2", **write("t", batch("c", producer=mine, sequence=2)))
    c.ok("the same batch again", **write("t", batch("c", producer=mine, sequence=2)))
    c.ok("the batch before, again", **write("t", batch("a", "b", producer=mine, sequence=0)))
    c.error("a sequence that is left out", **write("t", batch("d", producer=mine, sequence=9)))
    c.together(
        "three in one read, the last one twice",
        write("t", batch("x", producer=mine, sequence=3)),
        write("t", batch("y", producer=mine, sequence=4)),
        write("t", batch("y", producer=mine, sequence=4)),
    )
    c.error("acks=1 and a sequence that is left out", **write("t", batch("d", producer=mine, sequence=9), acks=1))
    c.ok("a newer epoch begins at 0", **write("t", batch("e", producer=(mine.producer_id, 1), sequence=0)))
    c.error("a newer epoch begins later", **write("t", batch("e", producer=(mine.producer_id, 2), sequence=5)))
    c.error("an epoch that is fenced", **write("t", batch("f", producer=mine, sequence=5)))
    c.ok("a producer that is unknown here", **write("t", batch("g", producer=(4242, 3), sequence=17)))
    c.any("a producer id without a sequence", **write("t", batch("h", producer=(4243, 0))))

    txn = init_producer(c, "tx")

    def transactional(sequence: int, producer: tuple[int, int] = txn, name: str | None = "tx") -> dict[str, Any]:
        records = batch("t", producer=producer, sequence=sequence, attributes=TRANSACTIONAL)
        return write("t", records, 1, transactional_id=name)

    c.any("transactional, the partition was not added", wait_ms=100, **transactional(0))
    if c.version < 12:  # later versions add the partition themselves
        add_partitions(c, "tx", txn, "t", 1)
        c.ok("transactional, the partition was added", wait_ms=100, **transactional(0))
    c.ok("transactional, the next batch", wait_ms=100, **transactional(1))
    c.ok("transactional, the same batch again", wait_ms=100, **transactional(1))
    c.any("transactional, repeated without the transactional id", **transactional(2, name=None))
    c.any("transactional, another transactional id", wait_ms=100, **transactional(2, name="another"))
    c.any("not transactional within a transaction", **write("t", batch("n", producer=txn, sequence=2), 1))
    c.together("transactional, two in one read", transactional(3), transactional(4), wait_ms=100)
    end_transaction(c, "tx", txn, commit=True)
    c.any("transactional, after the end", wait_ms=100, **transactional(5))
    init_producer(c, "tx")
    c.error("transactional, fenced by a successor", **transactional(6))
    c.broker.deny()
    c.error("transactional, denied", **transactional(7))
    c.broker.allow_everything()
    c.ok("no transaction", **write("t", batch("z")))


@script(PRODUCE, "on a slow disk", wait_until_flushed=True)
def produce_on_disk(c: Conversation) -> None:
    topics = Topics()
    topics.create(c, "t", 2)
    write = topics.write
    c.reconnect()
    c.start("acks=all, first", **write("t", batch("a"))).wait(9).wait(1)
    c.start("acks=all, repeated", **write("t", batch("b"))).wait(10)
    c.together("acks=all, three in one read", *(write("t", batch(value)) for value in "xyz"), wait_ms=20)
    c.ok("acks=1 does not wait", **write("t", batch("c"), acks=1))
    c.together("acks=0 does not wait", write("t", batch("d"), acks=0))
    c.together_of_several_apis(
        "a later request is answered after it",
        (PRODUCE, c.version, write("t", batch("e"))),
        (METADATA, 1, NO_TOPICS),
        (PRODUCE, c.version, write("t", batch("e"), acks=1)),
        wait_ms=40,
    )
    c.together(
        "two partitions and an error in one read",
        write("t", batch("f")),
        write("t", batch("g"), 1),
        write("t", batch("g"), 2),
        wait_ms=20,
    )
    mine = init_producer(c)
    c.together(
        "a duplicate of what is not committed",
        write("t", batch("i", producer=mine, sequence=0)),
        write("t", batch("i", producer=mine, sequence=0)),
        wait_ms=20,
    )
    c.broker.sync_ms = 4 * SECOND
    c.reconnect()
    c.start("the disk is too slow", **write("t", batch("h"))).wait(1 * SECOND).wait(3 * SECOND)
    c.start("the disk is too slow, repeated", **write("t", batch("h"))).wait(3 * SECOND)
    c.together(
        "the disk is too slow, two in one read", write("t", batch("h")), write("t", batch("h")), wait_ms=4 * SECOND
    )
    c.broker.sync_ms = 10
    c.broker.pass_time(10 * SECOND)
    c.start("the disk is fast again", **write("t", batch("h"))).wait(20)
    c.ok("acks=1 in the end", **write("t", batch("i"), acks=1))
