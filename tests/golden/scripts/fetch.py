"""Fetch: single requests, sessions, transactions, requests that wait."""

from typing import Any

from tests.golden.batches import (
    batch,
)
from tests.golden.conversation import OK, Conversation
from tests.golden.messages import Values
from tests.golden.scripts.common import (
    FETCH,
    PRODUCE,
    UNKNOWN_ID,
    Topics,
    create_topic_twice,
    delete_topic,
    end_transaction,
    open_transaction,
    produce,
    script,
)

# A short request of another API, to see that responses keep their order.
NO_TOPICS: Values = {"topics": []}


class Reads:
    """Fetch requests: topics by name or id, as the version has it."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def topic(self, name: str, *rows: dict[str, Any]) -> dict[str, Any]:
        return {"topic": name, "topic_id": self._topics.ids.get(name, UNKNOWN_ID), "partitions": list(rows)}

    @staticmethod
    def row(index: int = 0, offset: int = 0, epoch: int = -1, **more: Any) -> dict[str, Any]:
        fields = {"partition": index, "fetch_offset": offset, "current_leader_epoch": epoch, "log_start_offset": -1}
        return {**fields, "partition_max_bytes": 1_000_000, "last_fetched_epoch": -1, **more}

    def read(self, name: str, index: int = 0, offset: int = 0, *, more: Any = None, **row: Any) -> dict[str, Any]:
        return self.of([self.topic(name, self.row(index, offset, **row))], **(more or {}))

    @staticmethod
    def of(topics: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        limits = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1_000_000}
        return {**limits, "session_id": 0, "session_epoch": -1, "topics": topics, **more}


SESSIONS_FROM = 7


@script(FETCH)
def fetch_script(c: Conversation) -> None:
    topics = Topics()
    topics.create(c, "t", 2)
    topics.create(c, "other")
    reads = Reads(topics)
    read, of, row, topic = reads.read, reads.of, reads.row, reads.topic
    for number in range(3):
        produce(c, "t", batch(f"value {number}", "more"))
    produce(c, "other", batch("o"))

    c.reconnect()
    c.ok("first", **read("t"))
    c.ok("repeated", **read("t"))
    c.ok("from the middle of a batch", **read("t", 0, 3))
    c.ok("at the end", **read("t", 0, 6))
    c.ok("at the end, repeated", **read("t", 0, 6))
    c.ok("an empty partition", **read("t", 1))
    c.ok("one byte for the partition", **read("t", partition_max_bytes=1))
    c.ok("one byte for all", **read("t", more={"max_bytes": 1}))
    c.ok("room for one batch and a half", **read("t", partition_max_bytes=120))
    c.ok("several topics and partitions", **of([topic("t", row(0), row(1)), topic("other", row(0))]))
    c.ok("no room for the second topic", **of([topic("t", row(0)), topic("other", row(0))], max_bytes=240))
    c.any("a partition twice", **of([topic("t", row(0), row(0, 2))]))
    c.any("a topic without partitions", **of([topic("t")]))
    c.ok("a rack", **read("t", more={"rack_id": "rack-a"}))
    c.ok("a rack where no replica is", **read("t", more={"rack_id": "rack-b"}))
    c.together("two in one read", read("t", 0, 2), read("other"))
    c.together_of_several_apis(
        "a Produce in the same read",
        (FETCH, c.version, read("t", 1)),
        (PRODUCE, 9, {"acks": 1, "timeout": 1000, "topic_data": [topics.data("t", (1, batch("new")))]}),
        (FETCH, c.version, read("t", 1)),
    )

    c.error("offset before the start", **read("t", 0, -5))
    c.error("offset beyond the end", **read("t", 0, 100))
    c.error("unknown topic", **read("missing"))
    c.error("unknown partition", **read("t", 9))
    c.error("negative partition", **read("t", -1))
    c.error("one good, one unknown", **of([topic("t", row(0, 4), row(9)), topic("missing", row(0))]))
    c.any("a leader epoch of the future", **read("t", epoch=5))
    c.ok("the leader epoch", **read("t", epoch=0))
    topics.ids["renewed"] = create_topic_twice(c, "renewed")
    c.any("a leader epoch of the past", **read("renewed", epoch=0))
    c.ok("the later leader epoch", **read("renewed", epoch=1))
    c.any("last fetched epoch", **read("t", 0, 2, last_fetched_epoch=0))
    c.any("a last fetched epoch of the future", **read("t", 0, 2, last_fetched_epoch=7))
    replica = {"replica_id": 5, "replica_state": {"replica_id": 5, "replica_epoch": 1}}
    c.any("a replica that there is not", **read("t", more=replica))
    ourselves = {"replica_id": 1, "replica_state": {"replica_id": 1, "replica_epoch": 1}}
    c.any("a replica with this broker's id", **read("t", more=ourselves))
    c.any("negative limits", **read("t", more={"max_bytes": -1, "min_bytes": -1, "max_wait": -1}))
    c.any("an unknown isolation level", **read("t", more={"isolation_level": 7}))
    c.any("a cluster id", **read("t", more={"cluster_id": "some cluster"}) if c.version >= 12 else read("t"))

    # Longer than what is copied into one packet
    produce(c, "other", batch("long" * 6000))
    c.ok("many bytes", **read("other"))
    c.ok("many bytes and a small partition", **of([topic("other", row(0)), topic("t", row(0))]))

    # A Fetch that waits
    patient = {"max_wait": 500, "min_bytes": 1}
    c.start("waits in vain", expects=OK, **read("t", 0, 6, more=patient)).wait(499).wait(1)
    waiting = c.start("waits for a record", **read("t", 0, 6, more=patient)).wait(100)
    produce(c, "t", batch("at last"))
    waiting.look()
    two = c.start("waits for more bytes than one record", **read("t", 0, 7, more={"max_wait": 500, "min_bytes": 150}))
    produce(c, "t", batch("not enough"))
    two.wait(10)
    produce(c, "t", batch("enough, at last, for what was asked for"))
    two.look()
    blocked = c.begin(
        "one that waits, and one behind it",
        OK,
        [c.frame(FETCH, c.version, read("t", 0, 9, more=patient)), c.frame(FETCH, c.version, read("t", 0, 8))],
        None,
    )
    blocked.wait(500)
    c.start("does not wait for an error", **of([topic("t", row(0, 9), row(9))], **patient))
    c.broker.deny()
    c.error("denied on a connection that has read before", **read("t"))
    c.error("denied does not wait", **read("t", 0, 9, more=patient))
    c.broker.allow_everything()
    deleted = c.start("waits, and the topic is deleted", **read("other", 0, 2, more=patient)).wait(10)
    delete_topic(c, "other")
    deleted.look().wait(500)
    topics.create(c, "other")
    c.ok("a topic that was created again", **read("other"))
    c.ok("at last", **read("t", 0, 2))


@script(FETCH, "sessions")
def fetch_sessions(c: Conversation) -> None:
    topics = Topics()
    topics.create(c, "t", 2)
    topics.create(c, "other")
    reads = Reads(topics)
    of, row, topic = reads.of, reads.row, reads.topic
    produce(c, "t", batch("a", "b"))
    c.ok("no session", **of([topic("t", row(0))]))
    begun = c.ok("a new session", **of([topic("t", row(0), row(1)), topic("other", row(0))], session_epoch=0))
    number = begun.get("session_id", 0)

    def next_of(epoch: int, *asked: Any, forgotten: Any = (), **more: Any) -> dict[str, Any]:
        return of(list(asked), session_id=number, session_epoch=epoch, forgotten_topics_data=list(forgotten), **more)

    c.ok("nothing new", **next_of(1, topic("t", row(0, 2))))
    produce(c, "t", batch("c"), 1)
    c.ok("one partition has news", **next_of(2))
    c.ok("its offset moves on", **next_of(3, topic("t", row(1, 1))))
    c.ok("a partition is forgotten", **next_of(4, forgotten=[topic("t") | {"partitions": [1]}]))
    produce(c, "t", batch("d"), 1)
    c.ok("what is forgotten has no news", **next_of(5))
    c.ok("a partition is added", **next_of(6, topic("t", row(1, 1))))
    c.any("an unknown topic is added", **next_of(7, topic("missing", row(0))))
    c.any("the unknown topic again", **next_of(8))
    c.any("the unknown topic is forgotten", **next_of(9, forgotten=[topic("missing") | {"partitions": [0]}]))
    if c.version < SESSIONS_FROM:
        c.error("unknown topic", **of([topic("missing", row(0))]))
        return
    waiting = c.start("a session that waits", **next_of(10, topic("t", row(1, 2)), max_wait=500)).wait(10)
    produce(c, "t", batch("e"), 0)
    waiting.look()
    c.error("an epoch that was used", **next_of(5))
    c.error("an epoch of the future", **next_of(50))
    c.error("an unknown session", **of([], session_id=12345, session_epoch=1))
    c.error("a negative epoch", **next_of(-7))
    on_another = c.broker.connect()
    c.any("continued on another connection", on=on_another, **next_of(11))
    c.broker.deny()
    c.any("continued when everything is denied", **next_of(12))
    c.broker.allow_everything()
    c.any("continued when it is allowed again", **next_of(13))
    delete_topic(c, "other")
    c.any("a topic was deleted", **next_of(14))
    c.any("the session ends, and another read", **next_of(-1, topic("t", row(0))))
    c.error("the session has ended", **next_of(15))
    c.ok("an empty session", **of([], session_epoch=0))
    c.ok("no session in the end", **of([topic("t", row(0))]))


@script(FETCH, "transactions")
def fetch_transactions(c: Conversation) -> None:
    topics = Topics()
    topics.create(c, "t")
    reads = Reads(topics)
    committed, uncommitted = {"isolation_level": 1}, {"isolation_level": 0}
    produce(c, "t", batch("plain"))
    end_transaction(c, "tx", open_transaction(c, "tx", "t", "aborted"), commit=False)
    end_transaction(c, "tx", open_transaction(c, "tx", "t", "committed"), commit=True)
    left_open = open_transaction(c, "open", "t", "open")
    produce(c, "t", batch("behind an open transaction"))
    c.ok("read committed", **reads.read("t", more=committed))
    c.ok("read committed, repeated", **reads.read("t", more=committed))
    c.ok("read uncommitted", **reads.read("t", more=uncommitted))
    c.ok("read committed, from the last stable offset", **reads.read("t", 0, 5, more=committed))
    c.ok("read committed, behind the aborted", **reads.read("t", 0, 3, more=committed))
    waiting = c.start(
        "waits for the end of a transaction", **reads.read("t", 0, 5, more={**committed, "max_wait": 500})
    )
    end_transaction(c, "open", left_open, commit=False)
    waiting.look()
    c.error("read committed, beyond the end", **reads.read("t", 0, 99, more=committed))
    c.ok("read committed, after the end", **reads.read("t", 0, 5, more=committed))


@script(FETCH, "on a slow disk", wait_until_flushed=True)
def fetch_on_disk(c: Conversation) -> None:
    topics = Topics()
    topics.create(c, "t")
    reads = Reads(topics)
    produce(c, "t", batch("a"))
    c.ok("what is committed", **reads.read("t"))
    waiting = c.start("waits for what is committed", **reads.read("t", 0, 1, more={"max_wait": 500}))
    writer = c.broker.connect()
    fields = {"acks": 1, "timeout": 1000, "topic_data": [topics.data("t", (0, batch("b")))]}
    c.raw("an append wakes it when it is on disk", c.frame(PRODUCE, 9, fields), on=writer)
    waiting.look().wait(9).wait(1)
    c.raw("another append", c.frame(PRODUCE, 9, fields), on=writer)
    c.ok("what is not committed is not there", **reads.read("t", 0, 2))
    c.error("beyond what is committed and written", **reads.read("t", 0, 4))
    c.any("between what is committed and what is written", **reads.read("t", 0, 3))
    c.broker.pass_time(100)
    c.ok("now it is there", **reads.read("t", 0, 2))
