import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.runtime.request_threads import LOOKUPS_MAX
from headrace.core.image.model import PartitionRegistration
from headrace.model.errors import StorageError, UnknownTopic
from headrace.protocol.api import ApiKey
from headrace.storage import timestamp_lookup
from headrace.storage.segment.index_rebuild import IndexRebuilding
from headrace.storage.segment.log_segment import LogSegment
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

VERSIONS = range(1, 12)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


async def ask(kit: HandlerKit, timestamp: int, version: int = 11, *, topic: str = "t", **fields: Any) -> Any:
    partition = {"partition_index": 0, "timestamp": timestamp}
    for name in ("partition_index", "current_leader_epoch"):
        if name in fields:
            partition[name] = fields.pop(name)
    fields.setdefault("replica_id", -1)
    answer = await kit.ask(ApiKey.LIST_OFFSETS, version, topics=[{"name": topic, "partitions": [partition]}], **fields)
    return answer.topics[0].partitions[0]


def found(row: Any) -> tuple[int, int, int]:
    return row.error_code.value, row.offset, row.timestamp


@pytest.mark.parametrize("version", VERSIONS)
async def test_rule_28_a_time_is_found_in_every_version(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    for timestamp in (1_000, 2_000, 3_000):
        kit.append("t", "a", "b", timestamp=timestamp)
    assert found(await ask(kit, 2_001, version)) == (0, 3, 2_001)
    assert found(await ask(kit, 0, version)) == (0, 0, 1_000)
    assert found(await ask(kit, 2_500, version)) == (0, 4, 3_000)


async def test_rule_28_a_time_after_everything_is_not_found_and_no_error(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=1_000)
    row = await ask(kit, 5_000)
    assert found(row) == (0, -1, -1)
    assert row.leader_epoch == -1


async def test_rule_28_the_highest_timestamp_is_found_where_it_is(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=1_000)
    kit.append("t", "young", timestamp=9_000)
    kit.append("t", "b", timestamp=2_000)
    row = await ask(kit, MAX_TIMESTAMP, 7)
    assert found(row) == (0, 1, 9_000)
    assert row.leader_epoch == kit.partition("t").leader_epoch


async def test_rule_28_an_empty_partition_has_no_highest_timestamp(kit: HandlerKit) -> None:
    await kit.create("t")
    assert found(await ask(kit, MAX_TIMESTAMP)) == (0, -1, -1)
    assert found(await ask(kit, 0)) == (0, -1, -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_ends_of_a_partition(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", "c")
    kit.partition("t").delete_records(2)
    assert found(await ask(kit, EARLIEST, version)) == (0, 2, -1)
    assert found(await ask(kit, LATEST, version)) == (0, 3, -1)


async def test_the_local_start_is_the_start_and_nothing_was_ever_tiered(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", "b")
    assert found(await ask(kit, EARLIEST_LOCAL)) == (0, 0, -1)
    assert found(await ask(kit, LATEST_TIERED)) == (0, -1, -1)
    assert found(await ask(kit, EARLIEST_PENDING_UPLOAD)) == (0, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (EARLIEST_PENDING_UPLOAD, 10), (-100, 11)],
)
async def test_special_times_that_a_version_does_not_have_are_refused(
    kit: HandlerKit, timestamp: int, version: int
) -> None:
    await kit.create("t")
    assert found(await ask(kit, timestamp, version)) == (35, -1, -1)


@pytest.mark.parametrize(("timestamp", "walk"), [(2_001, "first_at_or_after"), (MAX_TIMESTAMP, "max_timestamp_record")])
async def test_lookup_by_time_walks_records_off_the_event_loop(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch, timestamp: int, walk: str
) -> None:
    await kit.create("t")
    kit.append("t", "a", "b", timestamp=2_000)
    threads: list[int] = []
    original = getattr(timestamp_lookup, walk)

    def noted(*arguments: Any, **options: Any) -> Any:
        threads.append(get_ident())
        return original(*arguments, **options)

    monkeypatch.setattr(timestamp_lookup, walk, noted)
    assert found(await ask(kit, timestamp)) == (0, 1, 2_001)
    assert len(threads) == 1
    assert get_ident() not in threads


@pytest.mark.parametrize("timestamp", [2_000, MAX_TIMESTAMP])
async def test_many_lookups_by_time_leave_threads_to_others(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch, timestamp: int
) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=2_000)
    loop, running, most = asyncio.get_running_loop(), 0, 0
    occupied, released = asyncio.Event(), asyncio.Event()

    async def in_thread(step: Callable[[], None]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == LOOKUPS_MAX:
            occupied.set()
        await released.wait()
        await loop.run_in_executor(None, step)
        running -= 1

    monkeypatch.setattr("headrace.broker.runtime.cooperative.asyncio.to_thread", in_thread)
    lookups = [asyncio.create_task(ask(kit, timestamp)) for _ in range(20)]
    await occupied.wait()
    released.set()
    assert {found(row) for row in await asyncio.gather(*lookups)} == {(0, 0, 2_000)}
    assert most == LOOKUPS_MAX


@pytest.mark.parametrize("timestamp", [2_000, MAX_TIMESTAMP])
async def test_lookup_by_time_goes_on_when_an_index_is_rebuilt(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch, timestamp: int
) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=2_000)
    rebuilds = 0

    async def rebuilt() -> None:
        nonlocal rebuilds
        rebuilds += 1

    original = LogSegment.translate_offset

    def translate_offset(self: LogSegment, offset: int) -> int:
        if not rebuilds:
            raise IndexRebuilding("in progress", rebuilt)
        return original(self, offset)

    monkeypatch.setattr(LogSegment, "translate_offset", translate_offset)
    monkeypatch.setattr(LogSegment, "start_for_time", lambda self, timestamp: self.translate_offset(0))
    assert found(await ask(kit, timestamp)) == (0, 0, 2_000)
    assert rebuilds == 1


async def test_only_lookups_by_time_wait_for_each_other(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=2_000)
    for _ in range(LOOKUPS_MAX):
        await kit.partitions.threads.lookups.acquire()
    assert found(await ask(kit, LATEST)) == (0, 1, -1)
    waiting = asyncio.create_task(ask(kit, 2_000))
    for _ in range(10):
        await asyncio.sleep(0)
    assert kit.partitions.threads.lookups._waiters
    kit.partition("t").follow(PartitionRegistration((2, 1), (2, 1), 2, 6, 2))
    kit.partitions.threads.lookups.release()
    assert found(await waiting) == (6, -1, -1), "the leader changed while it waited"


@pytest.mark.parametrize("timestamp", [2_000, MAX_TIMESTAMP])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda partition: partition.follow(PartitionRegistration((2, 1), (2, 1), 2, 6, 2)), 6),
        (lambda partition: partition.follow(PartitionRegistration((1,), (1,), 1, 6, 2)), 5),
        (lambda partition: partition.go_offline(StorageError("pulled out")), 56),
        (lambda partition: (partition.go_offline(UnknownTopic("deleted")), partition.log.abandon()), 3),
    ],
    ids=["another leader", "new leader epoch", "offline", "deleted"],
)
async def test_term_that_ends_during_a_lookup_by_time_is_a_retriable_error(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch, timestamp: int, change: Callable[[Partition], Any], code: int
) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=2_000)
    loop = asyncio.get_running_loop()
    partition = kit.partition("t")

    async def changed_meanwhile(step: Callable[[], None]) -> None:
        await loop.run_in_executor(None, step)
        change(partition)

    monkeypatch.setattr("headrace.broker.runtime.cooperative.asyncio.to_thread", changed_meanwhile)
    assert found(await ask(kit, timestamp)) == (code, -1, -1)


async def test_clients_see_only_what_is_committed(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=1_000)
    kit.append("t", "b", timestamp=2_000)
    kit.partition("t").high_watermark = 1  # as if a replica were behind: what is written stays uncommitted
    assert found(await ask(kit, LATEST, timeout=1)) == (0, 1, -1)
    assert found(await ask(kit, 2_000, timeout=1)) == (0, -1, -1)
    assert found(await ask(kit, MAX_TIMESTAMP, timeout=1)) == (0, -1, -1)
    assert found(await ask(kit, LATEST, replica_id=2)) == (0, 2, -1), "a replica asks for the log's end, and at once"


@pytest.mark.parametrize(("version", "timeout"), [(9, {}), (10, {"timeout": -5}), (10, {"timeout": 2**31 - 1})])
async def test_a_commit_that_never_comes_is_not_waited_for_without_end(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch, version: int, timeout: dict[str, int]
) -> None:
    monkeypatch.setattr("headrace.broker.replica.replica_manager.SETTLE_MS_MAX", 1)
    await kit.create("t")
    kit.append("t", "a", "b")
    kit.partition("t").high_watermark = 1
    assert found(await ask(kit, LATEST, version, **timeout)) == (0, 1, -1)
    assert not kit.partition("t").waiters.appends, "who gave up waits no more"


async def test_rule_08_read_committed_ends_at_the_last_stable_offset(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.create("t")
    kit.append("t", "a", timestamp=1_000)
    kit.append("t", "b", timestamp=2_000)
    monkeypatch.setattr(Partition, "last_stable_offset", property(lambda _: 1))
    assert found(await ask(kit, LATEST, isolation_level=1)) == (0, 1, -1)
    assert found(await ask(kit, LATEST, isolation_level=0)) == (0, 2, -1)
    assert found(await ask(kit, 2_000, isolation_level=1)) == (0, -1, -1)
    assert found(await ask(kit, 2_000, isolation_level=0)) == (0, 1, 2_000)


@pytest.mark.parametrize("version", range(4, 11))
async def test_rule_17_the_leader_epoch_is_told(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    kit.append("t", "a")
    epoch = kit.partition("t").leader_epoch
    assert (await ask(kit, LATEST, version)).leader_epoch == epoch
    assert (await ask(kit, EARLIEST, version)).leader_epoch == epoch
    assert (await ask(kit, 0, version)).leader_epoch == epoch


@pytest.mark.parametrize(("difference", "code"), [(-1, 74), (0, 0), (1, 75)])
async def test_rule_17_the_clients_leader_epoch_is_checked(kit: HandlerKit, difference: int, code: int) -> None:
    await kit.create("t")
    partition = kit.partition("t")
    partition.follow(PartitionRegistration((1,), (1,), 1, 5, 1))
    row = await ask(kit, LATEST, current_leader_epoch=5 + difference)
    assert row.error_code.value == code


async def test_rule_16_a_partition_that_another_broker_leads_is_not_unknown(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.partition("t").follow(PartitionRegistration((2, 1), (2, 1), 2, 6, 2))
    assert found(await ask(kit, LATEST)) == (6, -1, -1)
    assert found(await ask(kit, LATEST, partition_index=1)) == (3, -1, -1)
    assert found(await ask(kit, LATEST, topic="no-such-topic")) == (3, -1, -1)


async def test_a_partition_whose_disk_failed_is_told_as_such(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.partition("t").go_offline(StorageError("pulled out"))
    assert found(await ask(kit, LATEST)) == (56, -1, -1)


async def test_a_partition_that_is_asked_for_twice_is_an_invalid_request(kit: HandlerKit) -> None:
    await kit.create("t")
    twice = [{"partition_index": 0, "timestamp": LATEST}, {"partition_index": 0, "timestamp": EARLIEST}]
    answer = await kit.ask(ApiKey.LIST_OFFSETS, replica_id=-1, topics=[{"name": "t", "partitions": twice}])
    assert [row.error_code.value for row in answer.topics[0].partitions] == [42, 42]


async def test_who_may_not_describe_a_topic_learns_nothing_of_it(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.authorizer = DenyAll()
    assert found(await ask(kit, LATEST)) == (29, -1, -1)
    assert found(await ask(kit, LATEST, topic="no-such-topic")) == (29, -1, -1)


async def lagging(kit: HandlerKit, isr: tuple[int, ...]) -> Partition:
    """A leader that was elected a moment ago: three records in its log, and one known to be committed."""
    await kit.create("t", min_insync_replicas="2")
    for timestamp in (1_000, 2_000, 3_000):
        kit.append("t", "a", timestamp=timestamp)
    partition = kit.partition("t")
    partition.high_watermark = 1
    me = kit.node_id
    partition.follow(PartitionRegistration((me, 8, 9), (me, *isr), me, partition.leader_epoch + 1, 99))
    return partition


@pytest.mark.parametrize("isr", [(), (8,), (8, 9)])
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", range(2, 12))
async def test_lagging_watermark_makes_offsets_unavailable(
    kit: HandlerKit, version: int, isolation_level: int, isr: tuple[int, ...]
) -> None:
    partition = await lagging(kit, isr)
    with pytest.raises(StopIteration):  # nothing is awaited: followers may be away for long
        partition.settled().send(None)
    unavailable = (78 if version >= 5 else 5, -1, -1)
    level = {"isolation_level": isolation_level}
    assert found(await ask(kit, LATEST, version, **level)) == unavailable
    assert found(await ask(kit, 3_000, version, **level)) == unavailable
    assert found(await ask(kit, 9_000, version, **level)) == unavailable
    if version >= 7:
        assert found(await ask(kit, MAX_TIMESTAMP, version, **level)) == unavailable
    assert found(await ask(kit, EARLIEST, version, **level)) == (0, 0, -1)
    assert found(await ask(kit, 1_000, version, **level)) == (0, 0, 1_000)
    assert found(await ask(kit, LATEST, version, replica_id=8)) == (0, 3, -1)
    partition.set_high_watermark(3)
    assert found(await ask(kit, LATEST, version, **level)) == (0, 3, -1)


async def test_partition_below_min_isr_is_answered_without_waiting(kit: HandlerKit) -> None:
    partition = await lagging(kit, ())
    partition.set_high_watermark(3)
    kit.append("t", "d", timestamp=4_000)
    with pytest.raises(StopIteration):
        partition.settled().send(None)
    assert found(await ask(kit, LATEST)) == (0, 3, -1)
