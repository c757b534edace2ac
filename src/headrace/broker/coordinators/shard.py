"""One machine of a coordinator, with what the shell keeps beside it."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.broker.coordinators.timers import Timers
from headrace.broker.partition import Partition
from headrace.core.coordinator import Decision, Machine, Moment, Ticket
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError

AnyMachine = TypeVar("AnyMachine", bound=Machine[Any])

Waiter = Callable[[object], None]  # told the reply, or the HeadraceError that stands in its place


class Queued(NamedTuple):
    """A request that is decided about together with others, at the end of this turn of the loop."""

    decide: Callable[[Any, Ticket, Moment], Decision[Any]]
    waiter: Waiter


class Shard(Generic[AnyMachine]):
    """One machine with the partition that it lives in."""

    def __init__(
        self,
        machine: AnyMachine,
        partition: Partition,
        clock: Clock,
        timer_is_due: Callable[["Shard[AnyMachine]", str], None],
    ) -> None:
        self.machine = machine
        self.partition = partition
        self.is_loaded = False
        self.load_error: HeadraceError | None = None  # of the last attempt, while there is no machine
        self.timers = Timers(clock, lambda name: timer_is_due(self, name))
        self.queue: list[Queued] = []

    def taken_queue(self) -> list[Queued]:
        queue, self.queue = self.queue, []
        return queue
