"""How those who wait for a coordinator hear its answers."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.broker.coordinator.context import CoordinatorContext, Waiter
from headrace.broker.coordinator.errors import NotCoordinator
from headrace.broker.replica.partition import Partition
from headrace.core.coordinator import Answer
from headrace.model.errors import HeadraceError, NotLeader

log = logging.getLogger(__name__)


class Responder(Protocol):
    """The runtime, as an answer that waits for a commit sees it."""

    def committed(self, answers: Sequence[Answer]) -> None: ...

    def fail(self, answers: Sequence[Answer], error: HeadraceError) -> None: ...


def as_answer(error: Exception, shard: CoordinatorContext[Any]) -> HeadraceError:
    """What is told to those who wait: an error that was raised on purpose, or that there is a bug of ours."""
    if isinstance(error, HeadraceError):
        return to_coordinator_error(error)
    log.error("%s: a request could not be carried out", shard.partition, exc_info=error)
    return HeadraceError("the request could not be carried out: see the broker's log")


def to_coordinator_error(error: HeadraceError) -> HeadraceError:
    """As clients of a coordinator know it: who hears of partitions there gives up, instead of asking who it is now."""
    return NotCoordinator(str(error)) if isinstance(error, NotLeader) else error


def respond(waiter: Waiter, reply: object) -> None:
    """Call the waiter. One that raises is logged, so that the other responses of its batch are still sent."""
    try:
        waiter(reply)
    except Exception:
        log.exception("A response could not be sent")


def settle(future: "asyncio.Future[Any]", reply: object) -> None:
    if future.done():
        return
    if isinstance(reply, HeadraceError):
        future.set_exception(reply)
    else:
        future.set_result(reply)


class CommitCallback:
    """Answers when the facts of a decision are committed."""

    __slots__ = ("_answers", "_runtime", "deadline_ms")

    def __init__(self, runtime: Responder, answers: Sequence[Answer], deadline_ms: int | None) -> None:
        self._runtime = runtime
        self._answers = answers
        self.deadline_ms = deadline_ms  # None: waits as long as this broker leads the partition

    def committed(self) -> None:
        self._runtime.committed(self._answers)

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        self._runtime.fail(self._answers, error)


def expire(partition: Partition, now_ms: int, error: HeadraceError) -> bool:
    """Fails the answers that have waited too long for a commit of the partition. True if others still wait."""
    waiting = [one for _, one in partition.waiters.appends if isinstance(one, CommitCallback)]
    expired = {one for one in waiting if one.deadline_ms is not None and one.deadline_ms <= now_ms}
    if expired:
        partition.waiters.forget(expired)
        for one in waiting:
            if one in expired:
                one.failed(partition, error)
    return len(expired) < len(waiting)
