"""How many threads the requests of clients occupy; look-ups by time are in `handlers/test_list_offsets.py`."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.handlers.data.produce import ProduceHandler
from headrace.broker.runtime.request_threads import ADMISSIONS_MAX, LOOKUPS_MAX, RequestThreads
from headrace.process.runtime import SystemClock

# ThreadPoolExecutor has min(32, processors + 4) of them by default.
DEFAULT_THREADS_MIN = 5


def test_requests_leave_a_thread_to_all_others() -> None:
    assert LOOKUPS_MAX + ADMISSIONS_MAX < DEFAULT_THREADS_MIN


async def test_large_batches_of_many_producers_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = SimpleNamespace(threads=RequestThreads())
    handler = cast(ProduceHandler, SimpleNamespace(partitions=partitions, clock=SystemClock()))
    running = most = 0

    async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return work(*arguments)

    monkeypatch.setattr("headrace.broker.handlers.data.produce.asyncio.to_thread", in_thread)
    assert await asyncio.gather(*(ProduceHandler._admitted(handler, []) for _ in range(20))) == [{}] * 20
    assert most == ADMISSIONS_MAX
