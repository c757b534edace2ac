"""Transactions through the handlers, in every version: what clients are told, and what lies in the partitions then."""

import asyncio
from typing import Any

import pytest

from headrace.broker.controller.controller import Controller
from headrace.broker.coordinator import transaction_coordinator
from headrace.broker.coordinator.add_partitions_manager import AddPartitionsToTxnManager
from headrace.core.controller.topic_control import NewTopic
from headrace.core.image.deltas import MetadataDelta
from headrace.core.transaction.metadata import TransactionState
from headrace.model.errors import ErrorCode, HeadraceError, OutOfOrderSequence
from headrace.model.ids import TopicPartition
from headrace.protocol.api import SERVED, ApiKey
from headrace.records.builder import NewRecord, build_batch
from tests.unit.broker.connection_kit import until
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

TX = "tx"


def versions(api: ApiKey) -> range:
    return range(SERVED[api].lowest, SERVED[api].highest + 1)


async def init(kit: HandlerKit, version: int = 5, name: str = TX, **fields: Any) -> tuple[int, int, int]:
    await kit.transactions.leader_of(name)
    answer = await kit.ask(
        ApiKey.INIT_PRODUCER_ID, version, transactional_id=name, transaction_timeout=60_000, **fields
    )
    return answer.error_code.value, answer.producer_id, answer.producer_epoch


async def add(kit: HandlerKit, owner: tuple[int, int], *places: tuple[str, int], version: int = 3) -> dict[Any, int]:
    topics = [{"name": topic, "partitions": (index,)} for topic, index in places]
    producer = {"transactional_id": TX, "producer_id": owner[0], "producer_epoch": owner[1]}
    if version < 4:
        named = {f"v3_and_below_{key}": value for key, value in {**producer, "topics": topics}.items()}
        answer = await kit.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, **named)
        rows = answer.results_by_topic_v3_and_below
    else:
        answer = await kit.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=[{**producer, "topics": topics}])
        rows = answer.results_by_transaction[0].topic_results
    return {
        (topic.name, row.partition_index): row.partition_error_code.value
        for topic in rows
        for row in topic.results_by_partition
    }


async def end(kit: HandlerKit, owner: tuple[int, int], *, commit: bool = True, version: int = 4) -> Any:
    answer = await kit.ask(
        ApiKey.END_TXN,
        version,
        transactional_id=TX,
        producer_id=owner[0],
        producer_epoch=owner[1],
        committed=commit,
    )
    return answer.error_code.value, answer


def write(kit: HandlerKit, owner: tuple[int, int], value: bytes = b"v", sequence: int = 0) -> int:
    batch = build_batch(
        [NewRecord(1_000, None, value)],
        producer_id=owner[0],
        producer_epoch=owner[1],
        base_sequence=sequence,
        transactional=True,
    )
    partition = kit.partition("t")
    return partition.append(memoryview(bytearray(batch)), 1, kit.clock.wall_ms()).base_offset


async def completed(kit: HandlerKit) -> TransactionState:
    await kit.transactions.runtime.completed(TX, 5)
    return kit.transactions.describe(TX).state


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
async def test_a_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch(kit: HandlerKit, version: int) -> None:
    first, second = await init(kit, version), await init(kit, version)
    assert (first[0], second[0]) == (0, 0)
    assert second == (0, first[1], first[2] + 1)


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
async def test_partitions_are_added(kit: HandlerKit, version: int) -> None:
    await kit.create("t", 2)
    _, *owner = await init(kit)
    added = await add(kit, (owner[0], owner[1]), ("t", 0), ("t", 1), version=version)
    assert added == {("t", 0): 0, ("t", 1): 0}
    assert len(kit.transactions.describe(TX).partitions) == 2


async def test_one_bad_partition_keeps_the_others_out(kit: HandlerKit) -> None:
    await kit.create("t")
    _, *owner = await init(kit)
    added = await add(kit, (owner[0], owner[1]), ("t", 0), ("nowhere", 0))
    assert added == {("t", 0): 55, ("nowhere", 0): 3}
    assert not kit.transactions.describe(TX).partitions


@pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_brings_a_marker_into_every_partition(kit: HandlerKit, version: int, commit: bool) -> None:
    await kit.create("t")
    _, *identity = await init(kit)
    owner = (identity[0], identity[1])
    await add(kit, owner, ("t", 0))
    write(kit, owner)
    assert kit.partition("t").last_stable_offset == 0
    code, answer = await end(kit, owner, commit=commit, version=version)
    assert code == 0
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (owner[0], owner[1] + 1)
    state = await completed(kit)
    assert state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
    partition = kit.partition("t")
    assert (partition.last_stable_offset, partition.log_end_offset) == (2, 2)
    records = partition.read(0, 1_000, read_committed=True)
    aborted = partition.aborted_transactions(0, records)
    assert [one.producer_id for one in aborted] == ([] if commit else [owner[0]])


async def test_marker_waits_until_its_new_topic_is_followed(kit: HandlerKit) -> None:
    _, *identity = await init(kit)
    owner, may_follow = (identity[0], identity[1]), asyncio.Event()

    async def wait(_: MetadataDelta) -> None:
        await may_follow.wait()

    kit.controller._facts._delivery._listeners.insert(0, wait)
    creating = asyncio.create_task(kit.create("t"))
    await until(lambda: "t" in kit.image.topics)
    assert await add(kit, owner, ("t", 0)) == {("t", 0): 0}
    assert (await end(kit, owner))[0] == 0
    for _ in range(100):
        await asyncio.sleep(0)
    assert kit.transactions.describe(TX).state is TransactionState.PREPARE_COMMIT
    may_follow.set()
    await creating
    assert await completed(kit) is TransactionState.COMPLETE_COMMIT
    assert kit.partition("t").log_end_offset == 1, "the marker"


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_marker_of_a_topic_that_another_broker_created(kit: HandlerKit, is_deleted: bool) -> None:
    """Its leader adds the partition, and this broker learns of the topic later."""
    _, *identity = await init(kit)
    owner = (identity[0], identity[1])
    other = Controller(kit.store, kit.settings, kit.clock)
    await other.catch_up()
    await other.create_topics([NewTopic(name="t", partitions=1)])
    assert await add(kit, owner, ("t", 0), version=5) == {("t", 0): 0}
    if is_deleted:
        await other.delete_topics(["t"])
    assert "t" not in kit.image.topics
    assert (await end(kit, owner))[0] == 0
    assert await completed(kit) is TransactionState.COMPLETE_COMMIT
    assert ("t" in kit.image.topics) is not is_deleted
    assert is_deleted or kit.partition("t").log_end_offset == 1, "the marker"


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (5, 90)])
async def test_a_fenced_producer_is_told_so_in_words_that_it_knows(kit: HandlerKit, version: int, code: int) -> None:
    _, *old = await init(kit)
    await init(kit)
    assert (await end(kit, (old[0], old[1]), version=version))[0] == code


async def test_a_new_producer_waits_for_the_abort_of_what_was_open_instead_of_being_sent_away(
    kit: HandlerKit,
) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    await add(kit, (producer_id, epoch), ("t", 0))
    write(kit, (producer_id, epoch))
    assert await init(kit) == (0, producer_id, epoch + 2)
    assert kit.partition("t").last_stable_offset == 2
    with pytest.raises(HeadraceError):
        write(kit, (producer_id, epoch), b"late", 1)


@pytest.mark.parametrize(("version", "code"), [(9, 48), (11, 120)])
async def test_rule_13_kip_890_a_write_that_no_transaction_knows_of_is_refused(
    kit: HandlerKit, version: int, code: int
) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    guard = AddPartitionsToTxnManager(kit)  # type: ignore[arg-type]
    batch = build_batch(
        [NewRecord(1, None, b"v")], producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True
    )
    with pytest.raises(HeadraceError) as refusal:
        guard.check(kit.partition("t"), memoryview(batch), TX, version)
    assert refusal.value.code == code
    await add(kit, (producer_id, epoch), ("t", 0))
    guard.check(kit.partition("t"), memoryview(batch), TX, version)


@pytest.mark.parametrize(("version", "rejects"), [(9, False), (11, False), (12, True), (13, True)])
@pytest.mark.parametrize("epoch_bumps", [0, 2])
@pytest.mark.parametrize("verifies", [True, False])
async def test_first_batch_of_transaction_must_have_sequence_0(
    kit: HandlerKit, version: int, rejects: bool, epoch_bumps: int, verifies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before v12 transactions share an epoch, and the state of an earlier one may have expired: any may be right."""
    await kit.create("t")
    for _ in range(epoch_bumps):
        await init(kit)
    _, producer_id, epoch = await init(kit)
    await add(kit, (producer_id, epoch), ("t", 0))
    monkeypatch.setattr(kit.transactions, "verifies", verifies)
    guard, partition = AddPartitionsToTxnManager(kit), kit.partition("t")  # type: ignore[arg-type]

    def check(sequence: int) -> None:
        batch = build_batch(
            [NewRecord(1, None, b"v")],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        guard.check(partition, memoryview(batch), TX, version)

    if rejects:
        with pytest.raises(OutOfOrderSequence):
            check(1)
    else:
        check(1)
    check(0)
    write(kit, (producer_id, epoch))
    check(1)
    assert (await end(kit, (producer_id, epoch), version=5))[0] == 0
    await completed(kit)
    with pytest.raises(OutOfOrderSequence):  # the marker has left the new epoch, without a batch
        write(kit, (producer_id, epoch + 1), sequence=1)


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
async def test_offsets_count_once_the_transaction_is_committed(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    producer = {"transactional_id": TX, "producer_id": producer_id, "producer_epoch": epoch, "group_id": "g"}
    if version < 5:
        added = await kit.ask(ApiKey.ADD_OFFSETS_TO_TXN, min(version, 4), **producer)
        assert added.error_code.value == 0
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7, "committed_metadata": "n"}]}]
    answer = await kit.ask(ApiKey.TXN_OFFSET_COMMIT, version, **producer, topics=topics)
    assert answer.topics[0].partitions[0].error_code.value == 0
    offsets = kit.groups.runtime.shard_for("g").machine.offsets
    assert not offsets.of_group("g")
    assert offsets.unstable("g")
    assert (await end(kit, (producer_id, epoch), version=5 if version >= 5 else 3))[0] == 0
    await completed(kit)
    assert [one.offset for one in offsets.of_group("g").values()] == [7]
    assert not offsets.unstable("g")


@pytest.mark.parametrize(("version", "code"), [(3, 48), (4, 120)])
async def test_offsets_that_no_transaction_knows_of_are_refused(kit: HandlerKit, version: int, code: int) -> None:
    await kit.create("t")
    await kit.groups.leader_of("g")
    _, producer_id, epoch = await init(kit)
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
    answer = await kit.ask(
        ApiKey.TXN_OFFSET_COMMIT,
        version,
        transactional_id=TX,
        producer_id=producer_id,
        producer_epoch=epoch,
        group_id="g",
        topics=topics,
    )
    assert answer.topics[0].partitions[0].error_code.value == code


async def test_offsets_are_refused_if_their_transaction_ends_while_a_coordinator_elsewhere_is_asked(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    producer = {"transactional_id": TX, "producer_id": producer_id, "producer_epoch": epoch, "group_id": "g"}
    await kit.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, **producer)

    async def says_yes_and_ends_it(
        broker: Any, node_id: int, name: str, owner: Any, places: Any, **options: Any
    ) -> dict[TopicPartition, ErrorCode]:
        monkeypatch.setattr(kit.transactions, "elsewhere", lambda name: None)
        assert (await end(kit, (producer_id, epoch), commit=False, version=3))[0] == 0
        await completed(kit)
        return dict.fromkeys(places, ErrorCode.NONE)

    monkeypatch.setattr(kit.transactions, "elsewhere", lambda name: 2)
    monkeypatch.setattr(transaction_coordinator, "add_partitions_at", says_yes_and_ends_it)
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
    answer = await kit.ask(ApiKey.TXN_OFFSET_COMMIT, 3, **producer, topics=topics)
    assert answer.topics[0].partitions[0].error_code.value == ErrorCode.NOT_COORDINATOR
    assert not kit.groups.runtime.shard_for("g").machine.offsets.unstable("g"), "nobody would ever decide over it"


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_TXN_MARKERS))
async def test_an_administrator_ends_what_no_coordinator_knows(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    write(kit, (77, 0))
    marker = {
        "producer_id": 77,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": "t", "partition_indexes": (0, 9)}],
        "coordinator_epoch": 0,
    }
    answer = await kit.ask(ApiKey.WRITE_TXN_MARKERS, version, markers=[marker])
    rows = answer.markers[0].topics[0].partitions
    assert [row.error_code.value for row in rows] == [0, 3]
    assert kit.partition("t").last_stable_offset == 2


async def test_transactions_are_listed_and_described(kit: HandlerKit) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    await init(kit, name="other")
    await add(kit, (producer_id, epoch), ("t", 0))
    listed = await kit.ask(ApiKey.LIST_TRANSACTIONS, state_filters=("Ongoing", "Nonsense"))
    assert [(one.transactional_id, one.transaction_state) for one in listed.transaction_states] == [(TX, "Ongoing")]
    assert listed.unknown_state_filters == ("Nonsense",)
    everything = await kit.ask(ApiKey.LIST_TRANSACTIONS, 0)
    assert len(everything.transaction_states) == 2
    described = await kit.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=(TX, "unknown"))
    ours, unknown = described.transaction_states
    assert (ours.transaction_state, ours.producer_id) == ("Ongoing", producer_id)
    assert [(one.topic, one.partitions) for one in ours.topics] == [("t", (0,))]
    assert unknown.error_code.value == 105


@pytest.mark.parametrize("version", [1, 2])
async def test_transactions_are_listed_by_how_long_they_have_been_open(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    await init(kit, name="idle")
    await add(kit, (producer_id, epoch), ("t", 0))
    kit.clock.advance_ms(5_000)
    assert await listed(kit, version, duration_filter=4_999) == {TX}
    assert await listed(kit, version, duration_filter=0) == {TX}, "one without a transaction is not open at all"
    assert await listed(kit, version, duration_filter=5_000) == set(), "longer than that, not as long"
    assert await listed(kit, version, duration_filter=-1) == {TX, "idle"}, "no filter"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("shop-.*", {"shop-1", "shop-22"}),
        ("shop-.", {"shop-1"}),
        ("hop-1", set()),  # the whole name, not a part of it
        ("shop-1|bank", {"shop-1", "bank"}),
        ("", {"shop-1", "shop-22", "bank"}),
        (None, {"shop-1", "shop-22", "bank"}),
    ],
)
async def test_transactions_are_listed_by_a_pattern_of_their_names(
    kit: HandlerKit, pattern: str | None, names: set[str]
) -> None:
    for name in ("shop-1", "shop-22", "bank"):
        await init(kit, name=name)
    assert await listed(kit, 2, transactional_id_pattern=pattern) == names


async def test_a_pattern_that_is_no_expression_is_refused(kit: HandlerKit) -> None:
    await init(kit)
    answer = await kit.ask(ApiKey.LIST_TRANSACTIONS, 2, transactional_id_pattern="shop-(")
    assert (answer.error_code.value, answer.transaction_states) == (128, ())


async def test_filters_of_transactions_count_together(kit: HandlerKit) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    await init(kit, name="tx-idle")
    await add(kit, (producer_id, epoch), ("t", 0))
    kit.clock.advance_ms(5_000)
    both = {"transactional_id_pattern": "tx.*", "duration_filter": 1_000}
    assert await listed(kit, 2, **both) == {TX}
    assert await listed(kit, 2, **both, producer_id_filters=(producer_id + 1,)) == set()


async def listed(kit: HandlerKit, version: int, **filters: Any) -> set[str]:
    answer = await kit.ask(ApiKey.LIST_TRANSACTIONS, version, **filters)
    assert answer.error_code.value == 0
    return {one.transactional_id for one in answer.transaction_states}


async def test_a_strangers_transactional_id_is_out_of_reach(kit: HandlerKit) -> None:
    await kit.create("t")
    _, producer_id, epoch = await init(kit)
    kit.authorizer = DenyAll()
    assert (await init(kit))[0] == 53
    assert await add(kit, (producer_id, epoch), ("t", 0)) == {("t", 0): 53}
    assert (await end(kit, (producer_id, epoch)))[0] == 53
    described = await kit.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=(TX,))
    assert described.transaction_states[0].error_code.value == 53
    assert not (await kit.ask(ApiKey.LIST_TRANSACTIONS)).transaction_states
