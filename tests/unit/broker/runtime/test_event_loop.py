"""What is left for the end of a turn: done when everybody has been called, before the loop sleeps, and once."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.runtime.event_loop import BrokerEventLoop, iteration_end_scheduler, run_with_turn_ends
from headrace.testing.simulation.loop import SimLoop


@pytest.fixture(params=[BrokerEventLoop, SimLoop])
def loop(request: pytest.FixtureRequest) -> Iterator[BrokerEventLoop | SimLoop]:
    loop: BrokerEventLoop | SimLoop = request.param()
    yield loop
    loop.close()


def run_until_idle(loop: BrokerEventLoop | SimLoop) -> None:
    """Several turns, and one sleep at least."""
    loop.run_until_complete(asyncio.sleep(0.001))


def test_it_is_done_after_all_that_are_ready(loop: BrokerEventLoop | SimLoop) -> None:
    told: list[str] = []
    loop.call_soon(lambda: loop.call_at_turn_end(lambda: told.append("end")))
    loop.call_soon(told.append, "first")
    loop.call_soon(told.append, "second")
    run_until_idle(loop)
    assert told == ["first", "second", "end"]


def test_it_is_done_before_those_who_were_called_for_the_next_turn(loop: BrokerEventLoop | SimLoop) -> None:
    told: list[str] = []

    def turn() -> None:
        loop.call_soon(told.append, "next turn")
        loop.call_at_turn_end(lambda: told.append("end"))

    loop.call_soon(turn)
    run_until_idle(loop)
    assert told == ["end", "next turn"]


def test_what_it_asks_for_is_not_slept_over(loop: BrokerEventLoop | SimLoop) -> None:
    """asyncio decided to sleep for an hour before the turn ended; nobody would wake it."""
    done: list[str] = []

    async def wait_for_it() -> None:
        over = asyncio.Event()
        loop.call_later(3600, done.append, "too late")
        loop.call_at_turn_end(lambda: loop.call_soon(over.set))
        await over.wait()
        over.clear()
        loop.call_at_turn_end(lambda: loop.call_later(0.001, over.set))
        await over.wait()

    loop.run_until_complete(wait_for_it())
    assert not done


def test_what_is_left_at_the_end_is_for_the_end_of_the_next_turn(loop: BrokerEventLoop | SimLoop) -> None:
    told: list[str] = []

    def end() -> None:
        loop.call_soon(told.append, "next turn")
        loop.call_at_turn_end(lambda: told.append("its end"))

    loop.call_at_turn_end(end)
    run_until_idle(loop)
    assert told == ["next turn", "its end"]


def test_one_that_fails_is_reported_and_spoils_nothing(loop: BrokerEventLoop | SimLoop) -> None:
    reports: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, report: reports.append(report))
    told: list[str] = []

    def fail() -> None:
        raise ValueError("on purpose")

    loop.call_at_turn_end(fail)
    loop.call_at_turn_end(lambda: told.append("after it"))
    run_until_idle(loop)
    assert told == ["after it"]
    assert [str(report["exception"]) for report in reports] == ["on purpose"]


async def _hear_of(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, BrokerEventLoop)
    readable = asyncio.Event()
    loop.call_at_turn_end(lambda: loop.add_reader(sock, readable.set))
    await readable.wait()
    loop.remove_reader(sock)
    return sock.recv(1)


def test_a_socket_that_is_registered_at_the_end_is_heard() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        assert run_with_turn_ends(_hear_of(ours)) == b"x"


async def test_a_loop_without_ends_does_it_in_the_next_turn() -> None:
    told: list[str] = []
    iteration_end_scheduler(asyncio.get_running_loop())(lambda: told.append("done"))
    assert not told
    await asyncio.sleep(0)
    assert told == ["done"]


def test_a_broker_is_run_on_a_loop_that_has_them() -> None:
    async def serve() -> bool:
        return isinstance(asyncio.get_running_loop(), BrokerEventLoop)

    assert run_with_turn_ends(serve())
