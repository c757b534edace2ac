"""Two decisions that are taken on the same metadata and exclude each other: on every store, one of them conflicts."""

import pytest

from headrace.broker.controller.metadata_writer import Pinned
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision
from headrace.metadata.store import Conflict, Store
from tests.unit.core import decision_kit
from tests.unit.core.decision_kit import broken_invariants, first_commit, taken

EXCLUDE_EACH_OTHER = [
    ("unregister 4", "create new on 4"),
    ("unregister 4", "grow t onto 4"),
    ("unregister 4", "reassign t to 4"),
    ("unregister 4", "begin session of 4"),
    ("create a.b", "create a_b"),
    ("delete full", "grow full"),
    ("raise compaction lag of 1", "lower compaction lag everywhere"),
]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PARTITIONS_PER_BLOCK", decision_kit.PARTITIONS_PER_BLOCK)


async def image_of(store: Store) -> tuple[MetadataImage, set[str]]:
    snapshot = await store.load(records.ROOT)
    image = MetadataImage()
    in_order = sorted(snapshot.entries.values(), key=lambda entry: entry.version)
    writes = {entry.key: entry.value for entry in in_order}
    image.apply(snapshot.revision, writes, {entry.key: entry.version for entry in in_order})
    return image, set(writes)


def pinned(name: str, image: MetadataImage) -> Pinned[object]:
    decision = taken(name, image)
    assert isinstance(decision, Decision), decision
    return Pinned.of(decision, image)


@pytest.mark.parametrize("pair", [*EXCLUDE_EACH_OTHER, *((second, first) for first, second in EXCLUDE_EACH_OTHER)])
async def test_second_of_two_exclusive_decisions_conflicts(store: Store, pair: tuple[str, str]) -> None:
    await store.commit({}, first_commit())
    image, _ = await image_of(store)
    first, second = (pinned(name, image) for name in pair)
    await store.commit(first.expect, first.writes)
    with pytest.raises(Conflict):
        await store.commit(second.expect, second.writes)
    image, keys = await image_of(store)
    assert broken_invariants(image, keys) == []


async def test_placements_on_the_same_brokers_do_not_conflict(store: Store) -> None:
    await store.commit({}, first_commit())
    image, _ = await image_of(store)
    names = ("create new on 4", "grow full", "reassign t to 4", "create large", "register 4", "session of 3 ends")
    for decision in [pinned(name, image) for name in names]:
        await store.commit(decision.expect, decision.writes)
