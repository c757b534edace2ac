"""Replay: whatever form the log has, the machine hears every committed record once, in order, and the loop goes on."""

from typing import Any, cast

from headrace.broker.coordinator.loader import RECORDS_A_STEP, CoordinatorLoader
from headrace.broker.replica.partition import Partition
from headrace.core.coordinator import CoordinatorRecord, CoordinatorShard, Producer
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.storage.segment.index_rebuild import IndexRebuilding


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def replay(self, record: CoordinatorRecord, offset: int) -> None:
        self.heard.append((offset, record.key, record.value))

    def replay_in_transaction(self, record: CoordinatorRecord, offset: int, producer: Producer) -> None:
        self.heard.append((offset, record.key, record.value, producer))

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        self.heard.append((producer_id, committed))


class Piece:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        return self._data


class Written:
    """A partition that gives out one batch a read, and ends at `log_end_offset`."""

    def __init__(self, *batches: tuple[int, bytes], log_end_offset: int) -> None:
        self._batches = batches
        self.log_start_offset, self.log_end_offset = 0, log_end_offset

    def read_uncommitted(self, offset: int, bytes_max: int) -> Piece | None:
        return next((Piece(data) for end, data in self._batches if end > offset), None)


async def heard(*batches: tuple[int, bytes], log_end_offset: int) -> list[tuple[object, ...]]:
    listener = Listener()
    partition = Written(*batches, log_end_offset=log_end_offset)
    await CoordinatorLoader(cast(CoordinatorShard[Any], listener), cast(Partition, partition)).run()
    return listener.heard


def rows(*values: bytes | None) -> list[NewRecord]:
    return [NewRecord(5, b"k", value) for value in values]


async def test_replay_goes_on_when_an_index_is_rebuilt() -> None:
    listener, partition = Listener(), Written((1, build_batch(rows(b"a"))), log_end_offset=1)
    read, rebuilds = partition.read_uncommitted, 0

    async def rebuilt() -> None:
        nonlocal rebuilds
        rebuilds += 1

    def read_or_wait(offset: int, bytes_max: int) -> Piece | None:
        if not rebuilds:
            raise IndexRebuilding("in progress", rebuilt)
        return read(offset, bytes_max)

    partition.read_uncommitted = read_or_wait  # type: ignore[method-assign]
    await CoordinatorLoader(cast(CoordinatorShard[Any], listener), cast(Partition, partition)).run()
    assert listener.heard == [(0, b"k", b"a")]


async def test_plain_and_compressed_batches_are_heard_alike() -> None:
    plain = build_batch(rows(b"a", None))
    packed = build_batch(rows(b"b", b"c"), base_offset=2, codec=Codec.GZIP)
    assert await heard((2, plain), (4, packed), log_end_offset=4) == [
        (0, b"k", b"a"),
        (1, b"k", None),
        (2, b"k", b"b"),
        (3, b"k", b"c"),
    ]


async def test_many_batches_in_one_read_are_all_heard() -> None:
    data = b"".join(build_batch(rows(b"%d" % offset), base_offset=offset) for offset in range(100))
    assert await heard((100, data), log_end_offset=100) == [(offset, b"k", b"%d" % offset) for offset in range(100)]


async def test_records_of_a_transaction_and_its_end_are_told_as_such() -> None:
    written = build_batch(rows(b"a"), producer_id=7, producer_epoch=1, transactional=True)
    marker = EndMarker(ControlType.COMMIT, coordinator_epoch=0)
    ended = build_marker_batch(marker, producer_id=7, producer_epoch=1, timestamp=5, base_offset=1)
    assert await heard((2, written + ended), log_end_offset=2) == [(0, b"k", b"a", Producer(7, 1)), (7, True)]


async def test_what_is_not_committed_is_not_asked_for() -> None:
    batches = [(1, build_batch(rows(b"a"))), (2, build_batch(rows(b"b"), base_offset=1))]
    assert await heard(*batches, log_end_offset=1) == [(0, b"k", b"a")]


def test_a_long_batch_is_no_longer_step_than_a_short_one() -> None:
    replay = CoordinatorLoader(cast(CoordinatorShard[Any], Listener()), cast(Partition, Written(log_end_offset=0)))
    steps = list(replay._batches(build_batch(rows(*[b"v"] * (3 * RECORDS_A_STEP)))))
    assert len(steps) == 3
