"""Decisions that are taken on the same image and committed one after the other: the outcome is that of a serial order.

Each decision is committed on a history of one or two others that it has not seen. Either the commit conflicts, or the
metadata and the results are those of the same decisions in some order, each taken on what is committed before it.
"""

import inspect
import itertools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import NamedTuple
from uuid import UUID

import pytest

from headrace.broker.controller.metadata_writer import KEYS_PER_BATCH_MAX, Pinned
from headrace.core.controller import (
    alter_partition,
    cluster_control,
    config_control,
    replication_control,
    restored_metadata,
    topic_control,
)
from headrace.core.controller.replica_placer import PARTITIONS_PER_TOPIC_MAX
from headrace.core.controller.topic_control import NewTopic, TopicDefaults
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision
from headrace.metadata.key_value_state import KeyValueState
from headrace.metadata.store import Change, Conflict, Entry
from tests.unit.core import decision_kit
from tests.unit.core.decision_kit import DECISIONS, broken_invariants, first_commit, taken

REJECTED = "rejected"


class State(NamedTuple):
    entries: Mapping[str, Entry]
    revision: int
    image: MetadataImage

    @property
    def facts(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in self.entries.items()}


def state_of(ledger: KeyValueState) -> State:
    snapshot = ledger.snapshot("")
    image = MetadataImage()
    versions = {key: entry.version for key, entry in snapshot.entries.items()}
    in_order = sorted(snapshot.entries.values(), key=lambda entry: entry.version)
    image.apply(snapshot.revision, {entry.key: entry.value for entry in in_order}, versions)
    return State(snapshot.entries, snapshot.revision, image)


def committed(state: State, pinned: Pinned[object]) -> State:
    """The state after the commit; raises Conflict as every store does."""
    ledger = KeyValueState(state.entries.values(), state.revision)
    change = ledger.check(pinned.expect, pinned.writes, None) if pinned.writes else None
    if change is None:
        return state
    ledger.apply(change)
    return state_of(ledger)


class History(NamedTuple):
    """Decisions taken one after the other, and what each of them returned."""

    state: State
    results: Mapping[str, object]


def _rejected(history: History) -> set[str]:
    return {name for name, result in history.results.items() if result == REJECTED}


class Model:
    def __init__(self) -> None:
        ledger = KeyValueState()
        ledger.apply(Change(1, first_commit()))
        self._histories: dict[tuple[str, ...], History] = {(): History(state_of(ledger), {})}

    def serial(self, names: tuple[str, ...]) -> History:
        if names not in self._histories:
            before = self.serial(names[:-1])
            state, result = self._taken(before.state, names[-1])
            self._histories[names] = History(state, {**before.results, names[-1]: result})
        return self._histories[names]

    @staticmethod
    def _taken(state: State, name: str) -> tuple[State, object]:
        outcome = taken(name, state.image)
        if not isinstance(outcome, Decision):
            return state, REJECTED
        return committed(state, Pinned.of(outcome, state.image)), outcome.row

    def stale(self, name: str, history: tuple[str, ...]) -> History | None:
        """The decision is taken before the history and committed after it; None if that is a conflict."""
        outcome = taken(name, self.serial(()).state.image)
        after = self.serial(history)
        if not isinstance(outcome, Decision):
            return History(after.state, {**after.results, name: REJECTED})
        try:
            state = committed(after.state, Pinned.of(outcome, self.serial(()).state.image))
        except Conflict:
            return None
        return History(state, {**after.results, name: outcome.row})

    def is_serial(self, outcome: History, name: str, history: tuple[str, ...]) -> bool:
        orders = [self.serial(order) for order in itertools.permutations((name, *history))]
        if any((one.state.facts, one.results) == (outcome.state.facts, outcome.results) for one in orders):
            return True
        # The controller looks at all partitions after a change of a session and after each new partition. How many
        # partitions an election before that has changed may differ; what is accepted and what is rejected may not.
        return any(
            self._elected(one.state) == self._elected(outcome.state)
            for one in orders
            if _rejected(one) == _rejected(outcome)
        )

    def _elected(self, state: State) -> dict[str, object]:
        """The metadata after another election.

        A partition that is added begins with the sessions and the leader epoch that the decision saw. It is empty, and
        no partition had its index before, so only its replicas are compared.
        """
        metadata: dict[str, object] = dict(self._taken(state, "elect")[0].facts)
        added = records.block_key(decision_kit.T_ID, 1)
        if added in state.facts:
            metadata[added] = [one.replicas for one in records.decode_block(state.facts[added])]
        return metadata


@pytest.fixture(scope="module", autouse=True)
def _small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_control, "TOMBSTONES_MAX", 0)
        patch.setattr(records, "PARTITIONS_PER_BLOCK", decision_kit.PARTITIONS_PER_BLOCK)
        yield


@pytest.fixture(scope="module")
def model(_small_limits: None) -> Model:
    return Model()


@pytest.mark.parametrize("name", DECISIONS)
def test_stale_decision_conflicts_or_is_serializable(model: Model, name: str) -> None:
    others = [one for one in DECISIONS if one != name]
    wrong = []
    for history in [*itertools.permutations(others, 1), *itertools.permutations(others, 2)]:
        outcome = model.stale(name, history)
        if outcome is None:
            continue
        broken = broken_invariants(outcome.state.image, outcome.state.entries)
        if broken or not model.is_serial(outcome, name, history):
            wrong.append((history, broken))
    assert wrong == []


def test_model_takes_every_decision(model: Model) -> None:
    first = model.serial(()).state.image
    rejected = {name for name in DECISIONS if not isinstance(taken(name, first), Decision)}
    assert rejected == {"delete a_b", "delete new", "unregister 3"}, "they are accepted after others"


def test_every_decision_of_the_core_is_in_the_model() -> None:
    modules: list[ModuleType] = [
        cluster_control,
        topic_control,
        replication_control,
        config_control,
        alter_partition,
        restored_metadata,
    ]
    source = inspect.getsource(decision_kit)
    decisions = [
        function.__name__
        for module in modules
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not function.__name__.startswith("_")
        and "Decision" in str(inspect.signature(function).return_annotation)
    ]
    assert len(decisions) >= 18
    assert [name for name in decisions if name not in source] == []


@pytest.mark.parametrize("change", ["register 3 again", "session of 3 ends"])
def test_replica_of_an_earlier_life_does_not_join_the_isr(model: Model, change: str) -> None:
    """Its broker may have lost what that life fetched: it leaves the ISRs that it knows after its registration."""
    assert model.stale("isr stays, 3 joins", (change,)) is None


def test_largest_topic_fits_into_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PARTITIONS_PER_BLOCK", 100)
    name = "a.b" + "c" * 200
    image = MetadataImage()
    image.apply(1, {key: value for key, value in first_commit().items() if not key.startswith(records.PARTITIONS)})
    defaults = TopicDefaults(1, 1, decision_kit.layers(image))
    new = NewTopic(name, PARTITIONS_PER_TOPIC_MAX, 3)
    created = topic_control.create_topics({name: new}, image, {name: UUID(int=99)}, defaults)[name]
    assert isinstance(created, Decision)
    pinned = [Pinned.of(created, image)]
    image.apply(2, created.writes)
    deleted = topic_control.delete_topics([name], image, enabled=True, now_ms=0)[name]
    assert isinstance(deleted, Decision)
    pinned.append(Pinned.of(deleted, image))
    assert all(len(one.expect.keys() | one.writes.keys()) <= KEYS_PER_BATCH_MAX for one in pinned)
