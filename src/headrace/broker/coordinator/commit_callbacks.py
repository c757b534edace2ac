"""Completes coordinator requests: error mapping, waiters, and responses that wait for a commit."""

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
    """The coordinator runtime as seen by a response that waits for a commit."""

    def committed(self, answers: Sequence[Answer]) -> None: ...

    def fail(self, answers: Sequence[Answer], error: HeadraceError) -> None: ...


def as_answer(error: Exception, shard: CoordinatorContext[Any]) -> HeadraceError:
    """Returns the error for the waiting requests. An unexpected exception is logged and becomes a generic error."""
    if isinstance(error, HeadraceError):
        return to_coordinator_error(error)
    log.error("%s: a request could not be carried out", shard.partition, exc_info=error)
    return HeadraceError("the request could not be carried out: see the broker's log")


def to_coordinator_error(error: HeadraceError) -> HeadraceError:
    """Replaces NotLeader by NotCoordinator.

    Clients of a coordinator treat the former as fatal; after the latter they look up the coordinator.
    """
    return NotCoordinator(str(error)) if isinstance(error, NotLeader) else error


def respond(waiter: Waiter, reply: object) -> None:
    """Calls the waiter. An exception is logged, so that the other responses of its batch are still sent."""
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
    """Completes responses when the records of their decision are committed."""

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
    """Fails the responses that have waited too long for a commit. Returns whether others of the partition wait."""
    waiting = [one for _, one in partition.waiters.appends if isinstance(one, CommitCallback)]
    expired = {one for one in waiting if one.deadline_ms is not None and one.deadline_ms <= now_ms}
    if expired:
        partition.waiters.forget(expired)
        for one in waiting:
            if one in expired:
                one.failed(partition, error)
    return len(expired) < len(waiting)
