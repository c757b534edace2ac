"""The scenarios of the fault matrix: every path on which a partition's files are written, removed or opened."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from headrace.broker.log.log_manager import LogManager
from headrace.config.values import LogConfig
from headrace.model.errors import DiskFull, StorageError
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.log_retention import expired_segments
from tests.unit.storage.cleaner.compaction_kit import cleaner
from tests.unit.storage.matrix_kit import (
    CONFIG,
    NAME,
    Entry,
    Model,
    Offline,
    World,
    killed,
    leaders_log,
    power_lost,
)

Steps = Callable[[World], None]

PLAIN, IDEMPOTENT, FIRST, SECOND = -1, 1, 7, 8  # producers: the last two write in transactions
COMPACTED = replace(
    CONFIG, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000
)
EXPIRING = replace(CONFIG, retention_ms=10_000)
ROOMY = replace(CONFIG, segment_bytes=1 << 20)
# Two batches more than a segment holds after the first preallocation.
PREALLOCATED = replace(CONFIG, segment_bytes=8_192)


@dataclass(frozen=True)
class Scenario:
    name: str
    steps: Steps
    before: Steps = lambda world: world.start()
    config: LogConfig = CONFIG
    leader: int = 1

    @property
    def is_compacted(self) -> bool:
        return self.config.compacts


# Before


def started(world: World) -> None:
    world.start()
    world.produce(IDEMPOTENT)
    world.sync()


def with_three_segments(world: World) -> None:
    """Aborted and committed transactions in each of them; the last record of a producer is old."""
    started(world)
    transactions(world)
    world.produce(IDEMPOTENT)
    world.produce(FIRST, transactional=True)
    world.end(FIRST, commit=False)
    world.sync()


def transactions(world: World) -> None:
    world.produce(FIRST, transactional=True)
    world.end(FIRST, commit=False)
    world.produce(SECOND, transactional=True)
    world.produce(FIRST, transactional=True)
    world.end(SECOND, commit=True)
    world.end(FIRST, commit=False)


def ended(before: Steps, end: Steps) -> Steps:
    """The process before this one had come so far."""

    def steps(world: World) -> None:
        before(world)
        end(world)

    return steps


def clean(world: World) -> None:
    world.close()


# Steps


def leader_appends(world: World) -> None:
    for _ in range(3):
        world.produce(IDEMPOTENT)
    world.sync()
    world.produce(PLAIN)
    world.produce(IDEMPOTENT)
    world.sync()


def markers(world: World) -> None:
    """With a roll after an abort, whose index and snapshot become durable with the next sync."""
    transactions(world)
    world.sync()
    world.produce(FIRST, transactional=True)
    world.sync()
    world.end(FIRST, commit=False)
    world.sync()


def one_abort(world: World) -> None:
    world.produce(FIRST, transactional=True)
    world.end(FIRST, commit=False)
    world.sync()


def new_epoch(world: World) -> None:
    """A leader's first batch writes the epoch first."""
    world.epoch = 3
    world.partition.follow(world.state())
    world.produce(IDEMPOTENT)
    world.sync()


def coalesced_appends(world: World) -> None:
    world.produce(IDEMPOTENT)
    world.produce_run(IDEMPOTENT, 5)
    world.sync()
    world.produce_run(IDEMPOTENT, 3)
    world.sync()


def coordinator_appends(world: World) -> None:
    world.write_internal()
    world.write_internal(FIRST + 100)
    world.sync()
    world.end(FIRST + 100, commit=False)
    world.write_internal()
    world.write_internal(FIRST + 100)
    world.end(FIRST + 100, commit=True)
    world.sync()


LEADERS = [
    Entry(0, IDEMPOTENT, "value 0"),
    Entry(1, IDEMPOTENT, "value 1"),
    Entry(2, FIRST, "value 2", True),
    Entry(3, FIRST, aborts=True),
    Entry(4, SECOND, "value 4", True),
    Entry(5, IDEMPOTENT, "value 5"),
    Entry(6, SECOND),
    Entry(7, FIRST, "value 7", True),
    Entry(8, IDEMPOTENT, "value 8"),
    Entry(9, FIRST, aborts=True),
]
EPOCHS = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]


def follower_appends(world: World) -> None:
    for end in (2, 5, 10):
        world.copy(leaders_log(LEADERS[:end], EPOCHS[:end]), LEADERS[:end])
        world.sync()


def follower_truncates(world: World) -> None:
    """To the middle of the first segment, behind an aborted transaction of which the marker goes."""
    world.truncate(2)
    world.copy(leaders_log(LEADERS, EPOCHS), [*world.model.entries, *LEADERS[2:]])
    world.sync()


def follower_starts_anew(world: World) -> None:
    """The leader has deleted everything up to an offset past the follower's end."""
    world.truncate_fully_and_start_at(20)
    leaders = [*world.model.entries, Entry(20, FIRST, "value 20", True), Entry(21, FIRST, aborts=True)]
    world.copy(leaders_log(leaders, [1] * len(leaders)), leaders)
    world.sync()


def follower_history(world: World) -> None:
    world.start()
    leaders = [*LEADERS[:2], *[Entry(offset, IDEMPOTENT, f"former {offset}") for offset in range(2, 4)]]
    leaders += [Entry(4, FIRST, "former 4", True), Entry(5, FIRST, aborts=True)]
    leaders += [Entry(offset, IDEMPOTENT, f"former {offset}") for offset in range(6, 10)]
    world.copy(leaders_log(leaders, [0] * len(leaders)), leaders)
    world.sync()
    world.checkpoint()


def records_are_deleted(world: World) -> None:
    world.delete_records(3)
    world.produce(IDEMPOTENT)
    world.sync()
    world.delete_records(world.model.end)
    world.produce(IDEMPOTENT)
    world.sync()


def segments_expire(world: World) -> None:
    """All of them, the active one too, which is rolled first: twice, since the first attempt may find no room."""
    for _ in range(2):
        log, now_ms = world.log, 100_000
        expired = expired_segments(
            log.segments,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=world.partition.last_stable_offset,
            config=log.config,
            now_ms=now_ms,
        )
        start = expired.log_start_offset
        if expired.segments == len(log.segments) and not LogManager._roll(world.partition, now_ms):
            start = log.active.base_offset
        if world.partition.failure is not None:
            raise Offline
        if expired.segments:
            world.delete_records(start)
    world.produce(PLAIN)
    world.sync()


def keyed_records(world: World) -> None:
    world.start()
    for number in range(4):
        world.produce(PLAIN, key=f"key {number % 2}")
    world.produce(FIRST, transactional=True, key="key 0")
    world.end(FIRST, commit=False)
    for number in range(3):
        world.produce(PLAIN, key=f"key {number % 2}")
    world.sync()


def log_is_compacted(world: World) -> None:
    """The policy of LogManager: a full disk leaves the log as it was, anything else takes the partition offline."""
    for attempt in range(2):
        round_ = cleaner(world.log, now_ms=100_000)
        try:
            run_through(round_.run())
            break
        except DiskFull:
            assert attempt == 0, "the disk failed once"
            world.check()
        except StorageError as error:
            assert attempt == 0, "a round that found the disk full leaves nothing in the way of the next"
            world.partition.go_offline(error)
            raise Offline from error
        finally:
            for replaced in round_.cleaned.replaced:
                world.quietly(lambda one=replaced: one.remove(world.files))  # type: ignore[misc]
    world.produce(PLAIN, key="key 1")
    world.sync()


def tail_is_preallocated(world: World) -> None:
    for _ in range(10):
        world.produce(IDEMPOTENT)
        world.sync()
    one_abort(world)
    world.log.config = replace(world.config, segment_bytes=200)
    world.produce(IDEMPOTENT)
    world.sync()


def process_stops(world: World) -> None:
    world.produce(FIRST, transactional=True)
    world.end(FIRST, commit=False)
    try:
        world.close()
    except StorageError as error:
        world.partition.sync_failed(error)
        raise Offline from error


def process_starts(world: World) -> None:
    try:
        world.start(epoch=1)
    except StorageError as error:
        raise Offline from error
    world.adopt()
    world.produce(IDEMPOTENT)
    world.sync()


def unsynced_abort_in_rolled_segment(world: World) -> None:
    """Killed between a roll and the sync that makes the index durable."""
    started(world)
    world.produce(FIRST, transactional=True)
    world.end(FIRST, commit=False)
    world.sync()
    world.checkpoint()
    world.produce(IDEMPOTENT)
    world.produce(IDEMPOTENT)
    world.produce(IDEMPOTENT)


def nothing(world: World) -> None:
    """The data directory does not exist yet."""


def partition_is_created(world: World) -> None:
    try:
        world.start()
    except StorageError as error:
        raise Offline from error
    one_abort(world)


def _opened_or_created(world: World) -> Log:
    """As `PartitionDirectories.open_or_create`: a creation that failed half-way leaves a directory that is opened
    next.
    """
    log_dir = world.log_dir
    if not world.files.exists(f"{log_dir.path}/{NAME}"):
        return log_dir.create(NAME, UUID(int=8), world.config, now_ms=0)
    log_dir.restore_topic_id(NAME, UUID(int=8))
    return log_dir.open(NAME, world.config, now_ms=0)


def partition_is_replaced(world: World) -> None:
    """The topic is deleted and created again with the same name."""
    log_dir = world.log_dir
    world.partition.retire()
    world.model = Model()
    aside = None
    for _ in range(2):
        try:
            aside = aside or log_dir.set_aside(NAME, UUID(int=9), "-delete")
            log_dir.flush_forgotten_checkpoints()
            break
        except StorageError as error:
            world.failures.append(error)
    for _ in range(2):
        try:
            world.hold(_opened_or_created(world))
            break
        except StorageError as error:
            world.failures.append(error)
    world.produce(PLAIN)
    world.sync()
    try:
        world.files.remove_tree(aside or "")
    except StorageError as error:
        world.failures.append(error)


SCENARIOS = [
    Scenario("leader append", leader_appends, started),
    Scenario("first append of a new partition", leader_appends),
    Scenario("creation", partition_is_created, nothing),
    Scenario("transaction markers", markers, started),
    Scenario("new leader epoch", new_epoch, started),
    Scenario("coalesced append", coalesced_appends, started, ROOMY),
    Scenario("coordinator append", coordinator_appends, started),
    Scenario("follower append", follower_appends, leader=2),
    Scenario("follower truncation", follower_truncates, follower_history, leader=2),
    Scenario("follower starts anew", follower_starts_anew, follower_history, leader=2),
    Scenario("deletion", records_are_deleted, with_three_segments),
    Scenario("retention", segments_expire, with_three_segments, EXPIRING),
    Scenario("compaction", log_is_compacted, keyed_records, COMPACTED),
    Scenario("preallocation", tail_is_preallocated, started, PREALLOCATED),
    Scenario("checkpoint", lambda world: world.checkpoint(), with_three_segments),
    Scenario("clean stop", process_stops, with_three_segments),
    Scenario("start after a clean stop", process_starts, ended(with_three_segments, clean)),
    Scenario("start after a process crash", process_starts, ended(unsynced_abort_in_rolled_segment, killed)),
    Scenario("start after power loss", process_starts, ended(unsynced_abort_in_rolled_segment, power_lost)),
    Scenario("topic deleted and created again", partition_is_replaced, with_three_segments),
]
