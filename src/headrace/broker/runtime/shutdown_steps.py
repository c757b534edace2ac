"""Runs the steps of a shutdown independently of one another."""

import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class StopSteps:
    """Runs steps, each of which releases its own resources. A failed step is logged, and the others still run."""

    def __init__(self) -> None:
        self._failures: list[Exception] = []

    @property
    def has_failed(self) -> bool:
        return bool(self._failures)

    async def run(self, step: Callable[[], Awaitable[None] | None]) -> None:
        try:
            waiting = step()
            if waiting is not None:
                await waiting
        except Exception as error:
            log.exception("Shutdown step %s failed; running the remaining steps", getattr(step, "__qualname__", step))
            self._failures.append(error)

    def raise_first(self) -> None:
        if self._failures:
            raise self._failures[0]
