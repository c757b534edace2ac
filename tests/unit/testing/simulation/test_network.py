"""SimNetwork's connections keep the order of requests and replies, as a socket's do."""

import asyncio
from random import Random

import pytest

from headrace.protocol.frames import Parts
from headrace.testing.simulation.loop import SimLoop
from headrace.testing.simulation.network import SimConnection, SimNetwork, SimReply

SLOW, LAST, QUICK = b"slow", b"last", b"quick"


class Served:
    """A dispatcher that answers QUICK at once, and the others when the test says so."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.owed: dict[bytes, SimReply] = {}

    def __call__(self, connection: SimConnection, frame: memoryview) -> Parts | None:
        request = bytes(frame)
        self.handled.append(request)
        if request == QUICK:
            return [b"size", request]
        self.owed[request] = (
            connection.reserve_last_slot() if request == LAST else connection.reserve_slot_with_quick_ack()
        )
        return None

    def answer(self, request: bytes) -> None:
        self.owed.pop(request).send([b"size", request])


def run(requests: list[bytes], answered_in: list[bytes]) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """The requests that were handled, and the replies that the client had, before each answer and at the end."""
    loop = SimLoop()

    async def talk() -> tuple[list[list[bytes]], list[list[bytes]]]:
        network, served = SimNetwork(Random(1)), Served()
        got: list[bytes] = []
        network.serve(1, served)
        peer = network.connect(2, 1)

        async def ask(request: bytes) -> None:
            got.append(bytes(await peer.exchange(b"size" + request)))

        asked = [asyncio.create_task(ask(request)) for request in requests]
        handled, received = [], []
        for request in answered_in:
            await asyncio.sleep(1)
            handled.append(list(served.handled))
            received.append(list(got))
            served.answer(request)
        await asyncio.gather(*asked)
        return [*handled, served.handled], [*received, got]

    try:
        return loop.run_until_complete(talk())
    finally:
        loop.close()


def test_reply_waits_for_the_replies_before_it() -> None:
    handled, received = run([SLOW, QUICK], [SLOW])
    assert handled[0] == [SLOW, QUICK]
    assert received[0] == [], "the reply to the second request is ready, and waits for the first one's"
    assert sorted(received[-1]) == [QUICK, SLOW]


@pytest.mark.parametrize("later", [[QUICK], [SLOW, QUICK]])
def test_last_reply_stops_reading_until_it_is_sent(later: list[bytes]) -> None:
    handled, received = run([LAST, *later], [LAST, *([SLOW] if SLOW in later else [])])
    assert handled[0] == [LAST], "nothing behind it was read"
    assert handled[-1] == [LAST, *later]
    assert received[0] == []
    assert sorted(received[-1]) == sorted([LAST, *later])
