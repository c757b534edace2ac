"""Producers and transactions: from InitProducerId to WriteTxnMarkers, and what administrators ask about them."""

from typing import Any

from tests.golden.batches import batch
from tests.golden.conversation import SECOND, Conversation
from tests.golden.scripts.common import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
    Producer,
    add_partitions,
    create_topic,
    end_transaction,
    find_coordinator,
    init_producer,
    join_consumer_group,
    join_group,
    open_transaction,
    produce,
    script,
)


@script(INIT_PRODUCER_ID)
def init_producer_id_script(c: Conversation) -> None:
    def of(name: str | None = "tx", timeout: int = 60_000, producer: Producer | None = None) -> dict[str, Any]:
        producer = producer or Producer(-1, -1)
        return {
            "transactional_id": name,
            "transaction_timeout": timeout,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }

    def begun(answer: dict[str, Any]) -> Producer:
        return Producer(answer["producer_id"], answer["producer_epoch"])

    c.ok("idempotent", **of(None))
    c.ok("idempotent, repeated", **of(None))
    c.any("idempotent, with an id and epoch", **of(None, producer=Producer(0, 0)))
    c.any("before there is a coordinator", wait_ms=100, **of())
    find_coordinator(c, "tx", 1)
    first = begun(c.ok("the first", wait_ms=100, **of()))
    second = begun(c.ok("the second", wait_ms=100, **of()))
    c.any("with its id and epoch", wait_ms=100, **of(producer=second))
    c.any("with its id and the epoch before", wait_ms=100, **of(producer=second))
    c.any("with the id and epoch of its predecessor", wait_ms=100, **of(producer=first))
    c.any("with another id", wait_ms=100, **of(producer=Producer(4711, 0)))
    c.any("with an id and no epoch", wait_ms=100, **of(producer=Producer(second.producer_id, -1)))
    c.any("with an epoch and no id", wait_ms=100, **of(producer=Producer(-1, 0)))
    c.any("an unknown transactional id with an id and epoch", wait_ms=100, **of("new", producer=Producer(5, 0)))
    c.error("no timeout", **of(timeout=0))
    c.error("a negative timeout", **of(timeout=-1))
    c.error("a timeout that is too long", **of(timeout=100_000_000))
    c.error("an empty transactional id", **of(""))
    create_topic(c, "t")
    open_transaction(c, "open", "t", "a")
    c.any("while a transaction is open", **of("open"))
    c.broker.pass_time(100)
    c.ok("after it was aborted", wait_ms=100, **of("open"))
    c.broker.deny()
    c.error("idempotent, denied", **of(None))
    c.broker.allow_everything()
    c.ok("in the end", wait_ms=100, **of("last"))


@script(INIT_PRODUCER_ID, "on a slow disk", wait_until_flushed=True)
def init_producer_id_on_disk(c: Conversation) -> None:
    find_coordinator(c, "tx", 1)
    fields = {"transactional_id": "tx", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    c.start("the first", **fields).wait(9).wait(11)
    c.start("the second", **fields).wait(20)
    c.ok("idempotent", **{**fields, "transactional_id": None})


@script(ADD_PARTITIONS_TO_TXN)
def add_partitions_to_txn_script(c: Conversation) -> None:
    create_topic(c, "t", 3)
    create_topic(c, "other")
    mine = init_producer(c, "tx")
    batched_from = 4

    def topic(name: str, *indexes: int) -> dict[str, Any]:
        return {"name": name, "partitions": list(indexes)}

    def transaction(
        producer: Producer, *topics: dict[str, Any], name: str = "tx", verify: bool = False
    ) -> dict[str, Any]:
        return {
            "transactional_id": name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "verify_only": verify,
            "topics": list(topics),
        }

    def of(producer: Producer, *topics: dict[str, Any], name: str = "tx", verify: bool = False) -> dict[str, Any]:
        one = transaction(producer, *topics, name=name, verify=verify)
        if c.version >= batched_from:
            return {"transactions": [one]}
        return {f"v3_and_below_{key}": value for key, value in one.items() if key != "verify_only"}

    def ask(name: str, fields: dict[str, Any]) -> None:
        c.any(name, wait_ms=50, **fields)

    c.ok("a partition", wait_ms=50, **of(mine, topic("t", 0)))
    c.ok("the same again", wait_ms=50, **of(mine, topic("t", 0)))
    c.ok("several", wait_ms=50, **of(mine, topic("t", 1, 2), topic("other", 0)))
    ask("unknown topic", of(mine, topic("missing", 0)))
    ask("unknown partition", of(mine, topic("t", 0, 9)))
    ask("a good one and bad ones", of(mine, topic("t", 1, 9), topic("missing", 0)))
    ask("no partitions", of(mine, topic("t")))
    ask("no topics", of(mine))
    ask("a partition twice", of(mine, topic("t", 1, 1)))
    c.error("an unknown transactional id", wait_ms=50, **of(mine, topic("t", 0), name="unknown"))
    c.error("an empty transactional id", wait_ms=50, **of(mine, topic("t", 0), name=""))
    c.error("another producer id", wait_ms=50, **of(Producer(4711, 0), topic("t", 0)))
    c.error("an epoch of the future", wait_ms=50, **of(Producer(mine.producer_id, 9), topic("t", 0)))
    newer = init_producer(c, "tx")
    c.error("a fenced epoch", wait_ms=50, **of(mine, topic("t", 0)))
    if c.version >= batched_from:
        c.ok("a partition in the new epoch", wait_ms=50, **of(newer, topic("t", 0)))
        ask("verified", of(newer, topic("t", 0), verify=True))
        ask("verified, and it was not added", of(newer, topic("t", 0, 1), verify=True))
        ask("verified, an unknown topic", of(newer, topic("missing", 0), verify=True))
        ask("verified, another producer", of(Producer(4711, 0), topic("t", 0), verify=True))
        two = init_producer(c, "two")
        ask(
            "two transactions",
            {"transactions": [transaction(newer, topic("t", 1)), transaction(two, topic("other", 0), name="two")]},
        )
        ask(
            "a good one and bad ones in one request",
            {
                "transactions": [
                    transaction(newer, topic("t", 2)),
                    transaction(newer, topic("t", 0), name="unknown"),
                    transaction(two, topic("missing", 0), name="two"),
                ]
            },
        )
        ask("a transaction twice", {"transactions": [transaction(newer, topic("t", 2))] * 2})
        ask("no transactions", {"transactions": []})
    apart = init_producer(c, "apart")
    ask("an internal topic", of(apart, topic("__transaction_state", 0), name="apart"))
    c.ok("in the end", wait_ms=50, **of(newer, topic("t", 0)))


@script(ADD_OFFSETS_TO_TXN)
def add_offsets_to_txn_script(c: Conversation) -> None:
    find_coordinator(c, "g")
    mine = init_producer(c, "tx")

    def of(producer: Producer = mine, name: str = "tx", group_id: str = "g") -> dict[str, Any]:
        owner = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        return {"transactional_id": name, **owner, "group_id": group_id}

    c.ok("a group", wait_ms=50, **of())
    c.ok("the same again", wait_ms=50, **of())
    c.ok("another group", wait_ms=50, **of(group_id="another"))
    c.any("an empty group id", wait_ms=50, **of(group_id=""))
    c.error("an unknown transactional id", wait_ms=50, **of(name="unknown"))
    c.error("an empty transactional id", wait_ms=50, **of(name=""))
    c.error("another producer id", wait_ms=50, **of(Producer(4711, 0)))
    c.error("an epoch of the future", wait_ms=50, **of(Producer(mine.producer_id, 9)))
    newer = init_producer(c, "tx")
    c.error("a fenced epoch", wait_ms=50, **of(mine))
    c.ok("in the end", wait_ms=50, **of(newer))


@script(END_TXN)
def end_txn_script(c: Conversation) -> None:
    create_topic(c, "t", 2)

    def of(producer: Producer, name: str = "tx", *, commit: bool = True) -> dict[str, Any]:
        owner = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        return {"transactional_id": name, **owner, "committed": commit}

    def next_of(producer: Producer, answer: dict[str, Any]) -> Producer:
        """Newer versions return the epoch that the next transaction has."""
        return Producer(answer["producer_id"], answer["producer_epoch"]) if c.version >= 5 else producer

    mine = open_transaction(c, "tx", "t", "a")
    c.error("another producer id", wait_ms=100, **of(Producer(4711, 0)))
    c.error("an epoch of the future", wait_ms=100, **of(Producer(mine.producer_id, 9)))
    c.error("an unknown transactional id", wait_ms=100, **of(mine, "unknown"))
    c.error("an empty transactional id", wait_ms=100, **of(mine, ""))
    answer = c.ok("commit", wait_ms=100, **of(mine))
    c.any("commit again", wait_ms=100, **of(mine))
    c.any("abort what was committed", wait_ms=100, **of(mine, commit=False))
    mine = next_of(mine, answer)
    add_partitions(c, "tx", mine, "t", 1)
    answer = c.ok("abort", wait_ms=100, **of(mine, commit=False))
    c.any("abort again", wait_ms=100, **of(mine, commit=False))
    c.any("commit what was aborted", wait_ms=100, **of(mine))
    mine = next_of(mine, answer)
    c.any("abort without a transaction", wait_ms=100, **of(mine, commit=False))
    c.any("commit without a transaction", wait_ms=100, **of(mine))
    fresh = init_producer(c, "fresh")
    c.any("commit before any transaction", wait_ms=100, **of(fresh, "fresh"))
    c.any("abort before any transaction", wait_ms=100, **of(fresh, "fresh", commit=False))
    fenced = open_transaction(c, "fenced", "t", "b")
    init_producer(c, "fenced")
    c.error("a fenced epoch", wait_ms=100, **of(fenced, "fenced"))
    fast = open_transaction(c, "fast", "t", "c")
    c.together("commit twice in one read", of(fast, "fast"), of(fast, "fast"), wait_ms=100)
    slow = open_transaction(c, "slow", "t", "d")
    c.broker.pass_time(90 * SECOND)
    c.any("after the timeout", wait_ms=100, **of(slow, "slow"))
    last = open_transaction(c, "last", "t", "e")
    c.ok("in the end", wait_ms=100, **of(last, "last", commit=False))


@script(END_TXN, "on a slow disk", wait_until_flushed=True)
def end_txn_on_disk(c: Conversation) -> None:
    create_topic(c, "t")
    mine = open_transaction(c, "tx", "t", "a")
    fields = {
        "transactional_id": "tx",
        "producer_id": mine.producer_id,
        "producer_epoch": mine.epoch,
        "committed": True,
    }
    c.start("commit", **fields).wait(10).wait(10).wait(30)
    c.start("commit again", **fields).wait(10)
    other = open_transaction(c, "other", "t", "b")
    fields = {"transactional_id": "other", "producer_id": other.producer_id, "producer_epoch": other.epoch}
    c.together(
        "commit and abort in one read", {**fields, "committed": True}, {**fields, "committed": False}, wait_ms=100
    )


@script(WRITE_TXN_MARKERS)
def write_txn_markers_script(c: Conversation) -> None:
    create_topic(c, "t", 2)

    def marker(producer: Producer, *topics: tuple[str, list[int]], commit: bool = True, **more: Any) -> dict[str, Any]:
        return {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "transaction_result": commit,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics],
            "coordinator_epoch": 0,
            **more,
        }

    hanging = Producer(99, 4)
    mine = open_transaction(c, "tx", "t", "a")
    c.ok("abort", wait_ms=50, markers=[marker(mine, ("t", [0]), commit=False)])
    c.ok("abort again", wait_ms=50, markers=[marker(mine, ("t", [0]), commit=False)])
    c.ok("commit of an unknown producer", wait_ms=50, markers=[marker(hanging, ("t", [0, 1]))])
    c.error("a fenced epoch", wait_ms=50, markers=[marker(Producer(99, 1), ("t", [0]))])
    c.any("a later epoch", wait_ms=50, markers=[marker(Producer(99, 9), ("t", [0]))])
    c.any("a fenced coordinator", wait_ms=50, markers=[marker(Producer(99, 9), ("t", [0]), coordinator_epoch=-1)])
    c.any("a later coordinator", wait_ms=50, markers=[marker(Producer(99, 9), ("t", [0]), coordinator_epoch=5)])
    c.any("an earlier coordinator", wait_ms=50, markers=[marker(Producer(99, 9), ("t", [0]), coordinator_epoch=3)])
    c.error("unknown partition", wait_ms=50, markers=[marker(hanging, ("t", [0, 9]))])
    c.error("unknown topic", wait_ms=50, markers=[marker(hanging, ("missing", [0]))])
    c.error("no producer", wait_ms=50, markers=[marker(Producer(-1, 0), ("t", [0]))])
    c.error("no epoch", wait_ms=50, markers=[marker(Producer(5, -1), ("t", [0]))])
    c.any("a transaction version", wait_ms=50, markers=[marker(Producer(7, 1), ("t", [0]), transaction_version=2)])
    c.any(
        "a transaction version, the same epoch",
        wait_ms=50,
        markers=[marker(Producer(7, 1), ("t", [0]), transaction_version=2)],
    )
    find_coordinator(c, "g")
    c.any("an internal topic", wait_ms=50, markers=[marker(Producer(8, 1), ("__consumer_offsets", [0]))])
    c.any(
        "several markers, good and bad",
        wait_ms=50,
        markers=[
            marker(Producer(11, 0), ("t", [0])),
            marker(Producer(12, 0), ("missing", [0]), commit=False),
            marker(Producer(-1, 0), ("t", [1])),
        ],
    )
    c.any("a marker twice", wait_ms=50, markers=[marker(Producer(13, 0), ("t", [0]))] * 2)
    c.any("no topics", wait_ms=50, markers=[marker(Producer(14, 0))])
    c.ok("in the end", wait_ms=50, markers=[marker(Producer(15, 0), ("t", [0, 1]))])


@script(TXN_OFFSET_COMMIT)
def txn_offset_commit_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    find_coordinator(c, "g")
    mine = init_producer(c, "tx")

    def of(
        *rows: tuple[int, int],
        producer: Producer | None = None,
        name: str = "tx",
        group_id: str = "g",
        topic: str = "t",
        note: str | None = "note",
        **more: Any,
    ) -> dict[str, Any]:
        owner = producer or mine
        partitions = [
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_metadata": note,
                "committed_leader_epoch": -1,
            }
            for index, offset in rows
        ]
        return {
            "transactional_id": name,
            "group_id": group_id,
            "producer_id": owner.producer_id,
            "producer_epoch": owner.epoch,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": partitions}],
            **more,
        }

    def add_offsets(group_id: str = "g", name: str = "tx") -> None:
        owner = {"transactional_id": name, "producer_id": mine.producer_id, "producer_epoch": mine.epoch}
        c.arrange(ADD_OFFSETS_TO_TXN, 3, **owner, group_id=group_id)

    c.any("the group was not added", wait_ms=50, **of((0, 1)))
    add_offsets()
    c.ok("first", wait_ms=50, **of((0, 1)))
    c.ok("repeated", wait_ms=50, **of((0, 2)))
    c.ok("several partitions", wait_ms=50, **of((0, 3), (1, 4)))
    c.ok("no metadata", wait_ms=50, **of((0, 5), note=None))
    c.error("metadata that is too long", wait_ms=50, **of((0, 1), note="x" * 101))
    c.error("unknown partition", wait_ms=50, **of((0, 1), (9, 1)))
    c.error("unknown topic", wait_ms=50, **of((0, 1), topic="missing"))
    c.error("an empty group id", wait_ms=50, **of((0, 1), group_id=""))
    c.any("another group", wait_ms=50, **of((0, 1), group_id="another"))
    c.error("an unknown transactional id", wait_ms=50, **of((0, 1), name="unknown"))
    c.error("an empty transactional id", wait_ms=50, **of((0, 1), name=""))
    c.error("another producer id", wait_ms=50, **of((0, 1), producer=Producer(4711, 0)))
    c.error("an epoch of the future", wait_ms=50, **of((0, 1), producer=Producer(mine.producer_id, 9)))
    c.arrange(OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": None}])
    member = join_group(c, "classic", "i")
    add_offsets("classic")
    theirs = {"group_id": "classic", "generation_id": member.generation, "member_id": member.member_id}
    c.any("a member", wait_ms=50, **of((0, 1), **theirs, group_instance_id="i"))
    c.any("another generation", wait_ms=50, **of((0, 1), **{**theirs, "generation_id": 9}))
    c.any("an unknown member", wait_ms=50, **of((0, 1), **{**theirs, "member_id": "somebody"}))
    c.any(
        "a fenced static member", wait_ms=50, **of((0, 1), **{**theirs, "member_id": "before"}, group_instance_id="i")
    )
    c.any("no member of a group with members", wait_ms=50, **of((0, 1), group_id="classic"))
    modern = join_consumer_group(c, "modern", "t")
    add_offsets("modern")
    theirs = {"group_id": "modern", "generation_id": modern.generation, "member_id": modern.member_id}
    c.any("a member of the consumer protocol", wait_ms=50, **of((0, 1), **theirs))
    c.any("a member epoch of the past", wait_ms=50, **of((0, 1), **{**theirs, "generation_id": 0}))
    c.any("a member epoch of the future", wait_ms=50, **of((0, 1), **{**theirs, "generation_id": 9}))
    end_transaction(c, "tx", mine, commit=True)
    c.any("after the end", wait_ms=50, **of((0, 7)))
    newer = init_producer(c, "tx")
    c.error("a fenced epoch", wait_ms=50, **of((0, 7)))
    mine = newer
    add_offsets()
    c.ok("in the end", wait_ms=50, **of((0, 8)))


@script(DESCRIBE_TRANSACTIONS)
def describe_transactions_script(c: Conversation) -> None:
    create_topic(c, "t", 2)
    c.any("before there is a coordinator", transactional_ids=["tx"])
    init_producer(c, "idle")
    mine = open_transaction(c, "tx", "t", "a", index=1)
    add_partitions(c, "tx", mine, "t", 0)
    c.ok("one that has begun none", transactional_ids=["idle"])
    c.ok("an open one", transactional_ids=["tx"])
    c.error("unknown", transactional_ids=["unknown"])
    c.error("empty", transactional_ids=[""])
    c.error("several, one twice", transactional_ids=["tx", "unknown", "tx"])
    end_transaction(c, "tx", mine, commit=True)
    c.ok("committed", transactional_ids=["tx"])
    add_partitions(c, "tx", mine, "t", 0)
    end_transaction(c, "tx", mine, commit=False)
    c.ok("aborted", transactional_ids=["tx", "idle"])


@script(LIST_TRANSACTIONS)
def list_transactions_script(c: Conversation) -> None:
    create_topic(c, "t")

    def of(states: Any = (), producers: Any = (), duration: int = -1, pattern: str | None = None) -> dict[str, Any]:
        return {
            "state_filters": list(states),
            "producer_id_filters": list(producers),
            "duration_filter": duration,
            "transactional_id_pattern": pattern,
        }

    c.any("before there is a coordinator", **of())
    find_coordinator(c, "tx", 1)
    c.ok("none", **of())
    init_producer(c, "idle")
    first = open_transaction(c, "tx-1", "t", "a")
    c.broker.pass_time(5 * SECOND)
    open_transaction(c, "tx-2", "t", "b")
    c.ok("three", **of())
    c.ok("by state", **of(["Ongoing"]))
    c.any("by an unknown state", **of(["Ongoing", "Asleep"]))
    c.ok("by producer", **of(producers=[first.producer_id, 4711]))
    c.any("by duration", **of(duration=3000))
    c.any("by a pattern", **of(pattern="tx-.*"))
    c.any("by a pattern that is none", **of(pattern="("))
    c.any("by an empty pattern", **of(pattern=""))
    end_transaction(c, "tx-1", first, commit=True)
    c.ok("after one was committed", **of(["CompleteCommit"]))
    produce(c, "t", batch("z"))
    c.ok("in the end", **of())
