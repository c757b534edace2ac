"""Calls on threads that fail because a broker hangs: a problem that says so, not a bug of the gateway."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.rest.errors import problem_of
from headrace.api.rest.routing import blocking
from headrace.client.core.errors import UnknownOutcomeError
from headrace.client.librdkafka import BrokerUnreachable


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (TimeoutError("timed out"), UnknownOutcomeError),
        (ConnectionResetError(104, "Connection reset by peer"), UnknownOutcomeError),
        (BrokerUnreachable("no broker answers"), BrokerUnreachable),
    ],
)
async def test_broker_that_does_not_answer_is_a_retriable_problem(error: OSError, raised: type[Exception]) -> None:
    client: Any = SimpleNamespace(threads=asyncio.Semaphore(1))

    def call() -> None:
        raise error

    with pytest.raises(raised) as caught:
        await blocking(client, call)
    problem = problem_of(caught.value)
    assert (problem.status, problem.retriable) == (503, True)
