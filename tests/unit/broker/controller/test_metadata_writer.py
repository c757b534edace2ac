"""The writer of cluster metadata: which versions a commit compares, and what may happen between two commits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from headrace.broker.controller.metadata_writer import BYTES_PER_BATCH_MAX, KEYS_PER_BATCH_MAX, MetadataWriter
from headrace.core.image import records
from headrace.core.image.deltas import ConfigsChanged, MetadataDelta
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.store import KEYS_PER_COMMIT_MAX, LeaseId, Store
from headrace.model.errors import RequestError
from headrace.testing.simulation.clock import SimClock

GROUPS = [f"g{number}" for number in range(2 * KEYS_PER_COMMIT_MAX)]


class Interrupted:
    """A store on which another broker commits directly before the first commit of this one."""

    def __init__(self, store: Store, writes: Mapping[str, bytes | None]) -> None:
        self._store = store
        self.load, self.watch, self.close = store.load, store.watch, store.close
        self.grant, self.keep_alive, self.revoke = store.grant, store.keep_alive, store.revoke
        self._before: Mapping[str, bytes | None] | None = writes

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        before, self._before = self._before, None
        if before is not None:
            await self._store.commit({}, before)
        return await self._store.commit(expect, writes, lease)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(SimClock())
    yield store
    await store.close()


class Additions:
    """Decides to add one config to each group that is wanted, next to those that the group has."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    def __call__(self, wishes: Mapping[str, None]) -> dict[str, Decision[None] | RequestError]:
        return {name: Decision(None, {records.group_configs_key(name): self._added(name)}) for name in wishes}

    def _added(self, name: str) -> bytes:
        return records.encode_configs({**self._image.group_configs.get(name, {}), "ours": "1"})


async def test_later_batch_keeps_what_another_broker_wrote(store: MemoryStore) -> None:
    last = GROUPS[-1]
    theirs = {records.group_configs_key(last): records.encode_configs({"theirs": "1"})}
    image = MetadataImage()
    writer = MetadataWriter(Interrupted(store, theirs), image)
    await writer.write_each([(name, None) for name in GROUPS], Additions(image))
    assert image.group_configs[last] == {"theirs": "1", "ours": "1"}
    assert all(image.group_configs[name]["ours"] == "1" for name in GROUPS)


async def test_decision_that_reads_an_earlier_ones_write_is_repeated(store: MemoryStore) -> None:
    """Each group copies the configs of the group before it, so the outcome must be that of one after the other."""
    image = MetadataImage()
    writer = MetadataWriter(store, image)
    names = ["a", "b", "c"]

    def decide(wishes: Mapping[str, None]) -> dict[str, Decision[int] | RequestError]:
        total = sum(map(len, image.group_configs.values()))
        writes = {name: {records.group_configs_key(name): records.encode_configs({"n": str(total)})} for name in wishes}
        guards = tuple(records.group_configs_key(name) for name in names)
        return {name: Decision(total, writes[name], unchanged=guards) for name in wishes}

    rows = await writer.write_each([(name, None) for name in names], decide)
    assert rows == {"a": 0, "b": 1, "c": 2}


class Sized:
    """Notes the bytes of each commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.load, self.watch, self.close = store.load, store.watch, store.close
        self.grant, self.keep_alive, self.revoke = store.grant, store.keep_alive, store.revoke
        self.sizes: list[int] = []

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        self.sizes.append(sum(len(value) for value in writes.values() if value is not None))
        return await self._store.commit(expect, writes, lease)


async def test_large_decisions_are_committed_in_several_batches(store: MemoryStore) -> None:
    """etcd refuses a request of more than 1.5 MiB, however few keys it has."""
    image, sized = MetadataImage(), Sized(store)
    writer = MetadataWriter(sized, image)
    names = GROUPS[:KEYS_PER_BATCH_MAX]
    value = "x" * (BYTES_PER_BATCH_MAX // 40)

    def decide(wishes: Mapping[str, None]) -> dict[str, Decision[None] | RequestError]:
        return {
            name: Decision(None, {records.group_configs_key(name): records.encode_configs({"n": value})})
            for name in wishes
        }

    await writer.write_each([(name, None) for name in names], decide)
    assert set(image.group_configs) == set(names)
    assert max(sized.sizes) <= BYTES_PER_BATCH_MAX
    assert len(sized.sizes) == 4, "each batch is as large as it may be"


class Slow:
    """A listener that works on the first event until it is released."""

    def __init__(self, writer: MetadataWriter) -> None:
        self.works, self.released = asyncio.Event(), asyncio.Event()
        self.events: list[MetadataDelta] = []
        writer.add_listener(self._follow)

    async def _follow(self, event: MetadataDelta) -> None:
        self.works.set()
        await self.released.wait()
        self.events.append(event)


def addition(image: MetadataImage, name: str) -> Callable[[], Decision[None]]:
    def decide() -> Decision[None]:
        decision = Additions(image)({name: None})[name]
        assert isinstance(decision, Decision)
        return decision

    return decide


async def test_change_commits_while_listeners_follow_an_earlier_one(store: MemoryStore) -> None:
    image = MetadataImage()
    writer = MetadataWriter(store, image)
    slow = Slow(writer)
    earlier = asyncio.ensure_future(writer.write_one(addition(image, "earlier")))
    await slow.works.wait()
    await writer.write_one(addition(image, "urgent"), awaits_listeners=False)
    assert "urgent" in image.group_configs
    assert not earlier.done()
    ordinary = asyncio.ensure_future(writer.write_one(addition(image, "ordinary")))
    while "ordinary" not in image.group_configs:  # noqa: ASYNC110 - the image has no event to wait for
        await asyncio.sleep(0)
    assert not ordinary.done(), "it is answered when the listeners have followed it"
    slow.released.set()
    await asyncio.gather(earlier, ordinary)
    names = [event.resource.name for event in slow.events if isinstance(event, ConfigsChanged)]
    assert names == ["earlier", "urgent", "ordinary"]


async def test_other_change_commits_between_two_batches(store: MemoryStore) -> None:
    image = MetadataImage()
    writer = MetadataWriter(store, image)
    slow = Slow(writer)
    large = asyncio.ensure_future(writer.write_each([(name, None) for name in GROUPS], Additions(image)))
    await slow.works.wait()
    await writer.write_one(addition(image, "urgent"), awaits_listeners=False)
    assert GROUPS[-1] not in image.group_configs
    slow.released.set()
    await large
    assert GROUPS[-1] in image.group_configs


async def test_watched_commits_reach_the_image_while_listeners_work(store: MemoryStore) -> None:
    image = MetadataImage()
    writer = MetadataWriter(store, image)
    slow = Slow(writer)
    following = asyncio.ensure_future(writer.follow())
    await store.commit({}, {records.group_configs_key("first"): records.encode_configs({"theirs": "1"})})
    await slow.works.wait()
    await store.commit({}, {records.group_configs_key("second"): records.encode_configs({"theirs": "1"})})
    while "second" not in image.group_configs:  # noqa: ASYNC110 - the image has no event to wait for
        await asyncio.sleep(0)
    assert slow.events == []
    slow.released.set()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await writer.finish()
    assert len(slow.events) == 2, "events of what is in the image are delivered, also when the watch ends"


async def test_listener_that_awaits_a_change_fails(store: MemoryStore) -> None:
    image = MetadataImage()
    writer = MetadataWriter(store, image)

    async def listener(event: MetadataDelta) -> None:
        await writer.write_one(addition(image, "nested"))

    writer.add_listener(listener)
    with pytest.raises(RuntimeError, match="must not await"):
        await writer.write_one(addition(image, "outer"))
    assert "nested" not in image.group_configs
