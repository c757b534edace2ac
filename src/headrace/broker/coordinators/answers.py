"""How those who wait for a coordinator hear its answers."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.broker.coordinators.errors import NotCoordinator
from headrace.broker.coordinators.shard import Shard
from headrace.broker.partition import Partition
from headrace.core.coordinator import Answer
from headrace.model.errors import HeadraceError, NotLeader

log = logging.getLogger(__name__)


class Answerer(Protocol):
    """The runtime, as an answer that waits for a commit sees it."""

    def committed(self, answers: Sequence[Answer]) -> None: ...

    def fail(self, answers: Sequence[Answer], error: HeadraceError) -> None: ...


def as_answer(error: Exception, shard: Shard[Any]) -> HeadraceError:
    """What is told to those who wait: an error that was raised on purpose, or that there is a bug of ours."""
    if isinstance(error, HeadraceError):
        return of_coordinator(error)
    log.error("%s: a request could not be carried out", shard.partition, exc_info=error)
    return HeadraceError("the request could not be carried out: see the broker's log")


def of_coordinator(error: HeadraceError) -> HeadraceError:
    """As clients of a coordinator know it: who hears of partitions there gives up, instead of asking who it is now."""
    return NotCoordinator(str(error)) if isinstance(error, NotLeader) else error


def settle(future: "asyncio.Future[Any]", reply: object) -> None:
    if future.done():
        return
    if isinstance(reply, HeadraceError):
        future.set_exception(reply)
    else:
        future.set_result(reply)


class AnswerOnCommit:
    """Answers when the facts of a decision are committed."""

    __slots__ = ("_answers", "_runtime")

    def __init__(self, runtime: Answerer, answers: Sequence[Answer]) -> None:
        self._runtime = runtime
        self._answers = answers

    def committed(self) -> None:
        self._runtime.committed(self._answers)

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        self._runtime.fail(self._answers, error)
