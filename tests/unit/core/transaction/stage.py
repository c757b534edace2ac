"""A coordinator on a stage: a machine, a log, a clock, and partitions that take their markers when told to."""

from collections.abc import Callable
from typing import Any

from headrace.core.coordinator import CoordinatorRecord, CoordinatorTime, Decision
from headrace.core.transaction.coordinator_shard import TransactionConfig, TransactionCoordinatorShard
from headrace.core.transaction.errors import ProducerIdNeeded
from headrace.core.transaction.metadata import ProducerIdentity, TransactionMetadata
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition

CONFIG = TransactionConfig(timeout_ms_max=900_000, id_expiration_ms=604_800_000, id_expiration_check_ms=3_600_000)
WALL_START_MS = 1_700_000_000_000
TICKET = 1
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Stage:
    def __init__(self) -> None:
        self.machine = TransactionCoordinatorShard(CONFIG)
        self.log: list[CoordinatorRecord] = []
        self.timers: dict[str, int] = {}
        self.now_ms = 0
        self._next_id = 100
        self.carry_out(self.machine.loaded(self.now))

    @property
    def now(self) -> CoordinatorTime:
        return CoordinatorTime(self.now_ms, WALL_START_MS + self.now_ms)

    def carry_out(self, decision: Decision[Any]) -> Any:
        """What the shell does, with a log that never fails; the reply, raised if it is an error."""
        before = dict(self.machine.transactions)
        for fact in decision.facts:
            self.log.append(self.machine.encode(fact))
        assert self.machine.transactions == before, "deciding and encoding change nothing"
        for fact in decision.facts:
            self.machine.apply(fact, len(self.log))
        for name, due_ms in decision.timers:
            self.timers.pop(name, None)
            if due_ms is not None:
                self.timers[name] = due_ms
        self.check_rebuilt()
        for _, reply in decision.answers:
            if isinstance(reply, HeadraceError):
                raise reply
            return reply
        return None

    def check_rebuilt(self) -> None:
        """The log alone brings the same state about."""
        assert self.rebuilt().transactions == self.machine.transactions

    def rebuilt(self) -> TransactionCoordinatorShard:
        again = TransactionCoordinatorShard(CONFIG)
        for offset, record in enumerate(self.log):
            again.replay(record, offset)
        return again

    def restart(self) -> None:
        self.machine, self.timers = self.rebuilt(), {}
        self.carry_out(self.machine.loaded(self.now))

    def _with_id(self, decide: Callable[[int | None], Decision[Any]]) -> Any:
        try:
            decision = decide(None)
        except ProducerIdNeeded:
            self._next_id += 1
            decision = decide(self._next_id)
        return self.carry_out(decision)

    # What clients ask

    def init(
        self, name: str = "x", expected: ProducerIdentity | None = None, timeout_ms: int = 60_000
    ) -> ProducerIdentity:
        owner: ProducerIdentity = self._with_id(
            lambda fresh: self.machine.init_producer_id(
                TICKET, name, timeout_ms, expected, fresh_id=fresh, now_ms=self.now
            )
        )
        return owner

    def add(self, owner: ProducerIdentity, *places: TopicPartition, name: str = "x", version: int = 0) -> None:
        self.carry_out(
            self.machine.add_partitions(TICKET, name, owner, places, client_version=version, now_ms=self.now)
        )

    def end(self, owner: ProducerIdentity, *, commit: bool, name: str = "x", version: int = 0) -> ProducerIdentity:
        after: ProducerIdentity = self._with_id(
            lambda fresh: self.machine.end(
                TICKET, name, owner, commit=commit, client_version=version, fresh_id=fresh, now_ms=self.now
            )
        )
        return after

    # What happens

    def markers(self, name: str = "x") -> TransactionMetadata:
        """Every partition has taken its marker."""
        self.carry_out(self.machine.markers_written(self.machine.transactions[name], self.now))
        return self.machine.transactions[name]

    def advance(self, ms: int) -> None:
        """Time passes, and every timer that is due goes off, in order."""
        until_ms = self.now_ms + ms
        while self.timers:
            name = min(self.timers, key=lambda one: self.timers[one])
            if self.timers[name] > until_ms:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(name))
            self.carry_out(self.machine.expire(name, self.now))
        self.now_ms = until_ms

    def __getitem__(self, name: str) -> TransactionMetadata:
        return self.machine.transactions[name]
