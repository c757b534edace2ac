"""Producers, twins, retries, restarts and time, in any order: what must hold whatever happens."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.transaction.metadata import (
    AT_REST,
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    PREPARED,
    ProducerIdentity,
    TransactionState,
)
from headrace.model.errors import RequestError
from tests.unit.core.transaction.stage import T0, T1, Stage

TIMEOUT_MS = 10_000
VERSIONS = st.sampled_from([0, 2])
PLACES = st.sampled_from([(T0,), (T1,), (T0, T1)])
WHO = st.integers(0, 3)


class Coordinator(RuleBasedStateMachine):
    """Four producer processes that share one transactional id, most of them zombies."""

    @initialize()
    def begin(self) -> None:
        self.stage = Stage()
        self.held: dict[int, ProducerIdentity] = {}
        self.given: list[ProducerIdentity] = []
        self.outcome: dict[ProducerIdentity, bool] = {}  # of a prepared transaction, by the owner of its markers

    def _holds(self, who: int, owner: ProducerIdentity) -> None:
        self.held[who] = owner
        if owner not in self.given:
            self.given.append(owner)

    @rule(who=WHO, names_itself=st.booleans())
    def starts(self, who: int, names_itself: bool) -> None:
        expected = self.held.get(who) if names_itself else None
        try:
            owner = self.stage.init(expected=expected, timeout_ms=TIMEOUT_MS)
        except RequestError:
            return
        assert owner == self.stage["x"].owner
        if expected is None:
            assert owner not in self.given, "a new producer never shares an epoch with another"
        self._holds(who, owner)

    @rule(who=WHO, places=PLACES, version=VERSIONS)
    def adds(self, who: int, places: tuple[object, ...], version: int) -> None:
        owner = self.held.get(who, ProducerIdentity(1, 1))
        current = self.stage.machine.transactions.get("x")
        try:
            self.stage.add(owner, *places, version=version)  # type: ignore[arg-type]
        except RequestError:
            return
        assert current is not None
        assert owner == current.owner, "only the owner writes"

    @rule(who=WHO, commit=st.booleans(), version=VERSIONS)
    def ends(self, who: int, commit: bool, version: int) -> None:
        owner = self.held.get(who, ProducerIdentity(1, 1))
        before = self.stage.machine.transactions.get("x")
        try:
            after = self.stage.end(owner, commit=commit, version=version)
        except RequestError:
            return
        assert before is not None
        now = self.stage["x"]
        if now != before:
            assert owner == before.owner, "only the owner ends a transaction"
            assert not commit or before.state is TransactionState.ONGOING
        assert now.commits is commit, "the answer says what happened"
        self._holds(who, after)

    @precondition(lambda self: self._is_prepared())
    @rule()
    def markers_arrive(self) -> None:
        prepared = self.stage["x"]
        self.stage.markers()
        assert self.stage["x"].commits is prepared.commits
        assert self.stage["x"].state in AT_REST

    def _is_prepared(self) -> bool:
        return "x" in self.stage.machine.transactions and self.stage["x"].state in PREPARED

    @rule(ms=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS]))
    def time_passes(self, ms: int) -> None:
        self.stage.advance(ms)

    @rule()
    def the_coordinator_restarts(self) -> None:
        self.stage.restart()

    @invariant()
    def a_prepared_outcome_never_changes(self) -> None:
        if self._is_prepared():
            transaction = self.stage["x"]
            key = ProducerIdentity(transaction.producer_id, transaction.updated_ms * EPOCH_MAX + transaction.epoch)
            assert self.outcome.setdefault(key, transaction.commits) is transaction.commits

    @invariant()
    def no_transaction_outlives_its_timeout(self) -> None:
        if "x" in self.stage.machine.transactions and self.stage["x"].state is TransactionState.ONGOING:
            assert self.stage["x"].deadline_ms > self.stage.now.wall_ms

    @invariant()
    def clients_never_hold_the_last_epoch(self) -> None:
        assert all(owner.epoch <= CLIENT_EPOCH_MAX for owner in self.given)

    def teardown(self) -> None:
        """Whatever happened: left alone, it comes to rest, and the next producer is let in."""
        self.stage.advance(TIMEOUT_MS)
        if self._is_prepared():
            self.stage.markers()
        self.stage.init()


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
