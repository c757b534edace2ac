"""A connection answers in order, holds little, and outlives nothing that it should not."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from struct import pack
from typing import Protocol

import pytest

from headrace.broker.network.connection import REQUESTS_IN_FLIGHT_MAX, REQUESTS_PER_ITERATION_MAX, Connection
from headrace.broker.network.frame_reader import SHORT_READ_BYTES
from headrace.broker.network.memory_pool import FIRST_BUFFER_BYTES
from headrace.broker.network.response_queue import COPY_BYTES_MAX, CORKED_PARTS_MAX
from headrace.model.errors import ProtocolError
from headrace.protocol.frames import Parts
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log_types import FileRecords
from tests.unit.broker.connection_kit import (
    KIB,
    MIB,
    Answering,
    Dispatch,
    Peer,
    StandInServer,
    echo,
    frame,
    settle,
    until,
)


class Connect(Protocol):
    def __call__(self, dispatch: Dispatch = ..., **limits: int) -> Peer: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as peers:

        def new(dispatch: Dispatch = echo, **limits: int) -> Peer:
            peer = StandInServer(dispatch, **limits).connect()
            peers.callback(peer.close)
            return peer

        yield new


def numbered(count: int) -> list[bytes]:
    return [b"request %d" % number for number in range(count)]


# Order


async def test_rule_04_answers_keep_the_order_of_their_requests(connect: Connect) -> None:
    answering = Answering()
    peer = connect(answering)
    await peer.send(b"".join(frame(one) for one in numbered(3)))
    answering.answer(2)
    answering.answer(1)
    assert peer.has_nothing(), "the first request has no answer yet"
    answering.answer(0)
    assert [await peer.receive() for _ in range(3)] == numbered(3)


async def test_rule_04_an_answer_that_is_ready_waits_for_the_one_before_it(connect: Connect) -> None:
    answering = Answering()

    def first_later(connection: Connection, request: memoryview) -> Parts | None:
        return answering(connection, request) if bytes(request) == b"request 0" else echo(connection, request)

    peer = connect(first_later)
    await peer.send(b"".join(frame(one) for one in numbered(3)))
    assert peer.has_nothing()
    answering.answer()
    assert [await peer.receive() for _ in range(3)] == numbered(3)


async def test_rule_04_a_request_without_an_answer_leaves_no_gap(connect: Connect) -> None:
    peer = connect(lambda connection, request: () if request[-1] % 2 else echo(connection, request))
    await peer.send(b"".join(frame(bytes((number,))) for number in range(100)))
    assert [await peer.receive() for _ in range(50)] == [bytes((number,)) for number in range(0, 100, 2)]


async def test_a_client_hears_at_once_that_its_request_has_come_if_the_answer_takes_long() -> None:
    replies = []

    def slowly(connection: Connection, request: memoryview) -> Parts | None:
        if bytes(request) == b"quick":
            return echo(connection, request)
        replies.append(connection.reserve_slot_with_quick_ack())
        return None

    def acknowledges_at_once() -> bool:
        return bool(connection_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))

    peer = StandInServer(slowly).connect_by_tcp()
    with closing(peer):
        connection_socket = peer.connection._socket
        # A conversation of small questions and answers: from now on Linux lets answers carry the acknowledgements.
        connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        await peer.send(frame(b"quick"))
        assert await peer.receive() == b"quick"
        assert not acknowledges_at_once()
        await peer.send(frame(b"slow"))
        await until(lambda: bool(replies))
        assert acknowledges_at_once()
        replies[0].send([frame(b"done")])
        assert await peer.receive() == b"done"


async def test_a_request_that_is_handled_alone_lets_nothing_past_it_be_read(connect: Connect) -> None:
    seen: list[bytes] = []
    replies = []

    def one_at_a_time(connection: Connection, request: memoryview) -> None:
        seen.append(bytes(request))
        replies.append(connection.reserve_last_slot())

    peer = connect(one_at_a_time)
    await peer.send(b"".join(frame(one) for one in numbered(5)))
    for number, request in enumerate(numbered(5)):
        assert seen == numbered(number + 1)
        replies[number].send([frame(request)])
        assert await peer.receive() == request
        await settle()


async def test_a_request_that_is_handled_alone_waits_for_the_answer_before_its_own(connect: Connect) -> None:
    """Else a client could pile up large answers behind a fetch that is parked for minutes."""
    parked = Answering()
    alone = []

    def dispatch(connection: Connection, request: memoryview) -> None:
        if not parked.waiting and not alone:
            parked(connection, request)
        else:
            alone.append(connection.reserve_last_slot())
            alone[-1].send([frame(bytes(request))])

    peer = connect(dispatch)
    await peer.send(b"".join(frame(one) for one in numbered(4)))
    assert len(alone) == 1
    parked.answer()
    assert [await peer.receive() for _ in range(4)] == numbered(4)


# Pipelining and back-pressure


@pytest.mark.parametrize("count", [63, 64, 65, 257, 2_000])
async def test_any_number_of_pipelined_requests_is_answered(connect: Connect, count: int) -> None:
    peer = connect()
    sending = asyncio.create_task(peer.send(b"".join(frame(one) for one in numbered(count))))
    assert [await peer.receive() for _ in range(count)] == numbered(count)
    await sending


async def test_pipelined_requests_beyond_the_limit_wait_and_are_all_answered(connect: Connect) -> None:
    answering = Answering()
    peer = connect(answering)
    count = 3 * REQUESTS_IN_FLIGHT_MAX
    await peer.send(b"".join(frame(one) for one in numbered(count)))
    received = []
    while len(received) < count:
        assert len(answering.waiting) <= REQUESTS_IN_FLIGHT_MAX
        answering.answer()
        received.append(await peer.receive())
    assert received == numbered(count)


async def test_a_client_with_many_requests_lets_others_have_their_turn(connect: Connect) -> None:
    loop = asyncio.get_running_loop()
    handled: list[int] = [0]  # in each turn of the loop

    def dispatch(connection: Connection, request: memoryview) -> Parts:
        if not handled[-1]:
            loop.call_soon(handled.append, 0)
        handled[-1] += 1
        return echo(connection, request)

    peer = connect(dispatch)
    count = 5 * REQUESTS_PER_ITERATION_MAX + 1
    await peer.send(b"".join(frame(one) for one in numbered(count)))
    assert [await peer.receive() for _ in range(count)] == numbered(count)
    assert max(handled) == REQUESTS_PER_ITERATION_MAX
    assert sum(handled) == count


async def test_a_client_that_does_not_read_is_not_read_from(connect: Connect) -> None:
    answer = frame(bytes(256 * KIB))
    handled = 0

    def large(connection: Connection, request: memoryview) -> Parts:
        nonlocal handled
        handled += 1
        return [answer]

    peer = connect(large)
    sending = asyncio.create_task(peer.send(frame(b"more") * 1_000))
    await settle()
    assert handled <= CORKED_PARTS_MAX, "answers to a deaf client would fill our memory"
    for _ in range(1_000):
        assert len(await peer.receive()) == 256 * KIB
    await sending
    assert handled == 1_000


async def test_answers_that_are_given_later_do_not_pile_up_for_a_client_that_does_not_read(connect: Connect) -> None:
    answer = frame(bytes(256 * KIB))
    handled = 0

    def large_later(connection: Connection, request: memoryview) -> None:
        nonlocal handled
        handled += 1
        asyncio.get_running_loop().call_soon(connection.reserve_last_slot().send, [answer])

    peer = connect(large_later)
    sending = asyncio.create_task(peer.send(frame(b"more") * 100))
    await settle()
    assert handled < 10, "answers to a deaf client would fill our memory"
    for _ in range(100):
        assert len(await peer.receive()) == 256 * KIB
    await sending
    assert handled == 100


async def test_records_are_sent_from_their_file_between_bytes_of_ours(connect: Connect) -> None:
    file = MemoryFiles().open("/log", create=True)
    content = bytes(range(256)) * KIB
    file.append(content)
    slices = [FileRecords(file, 10, 100), FileRecords(file, 500, COPY_BYTES_MAX + 1), FileRecords(file, 0, 200 * KIB)]
    expected = b"<" + b"|".join(one.read() for one in slices) + b">"

    def records(connection: Connection, request: memoryview) -> Parts:
        return [pack(">i", len(expected)) + b"<", slices[0], b"|", slices[1], b"|", slices[2], b">"]

    peer = connect(records)
    sending = asyncio.create_task(peer.send(frame(b"fetch") * 10))
    for _ in range(10):
        assert await peer.receive() == expected
    await sending


# Frames


@pytest.mark.parametrize("piece_bytes", [1, 3, 4, 7])
async def test_frames_arrive_in_pieces(connect: Connect, piece_bytes: int) -> None:
    peer = connect()
    data = b"".join(frame(one) for one in numbered(5))
    for start in range(0, len(data), piece_bytes):
        await peer.send(data[start : start + piece_bytes])
    assert [await peer.receive() for _ in range(5)] == numbered(5)


@pytest.mark.parametrize("size", [FIRST_BUFFER_BYTES - 4, FIRST_BUFFER_BYTES, 300 * KIB, MIB])
async def test_large_frames_are_put_together_one_after_the_other(connect: Connect, size: int) -> None:
    peer = connect(lambda connection, request: [frame(bytes(request[:8]) + bytes(request[-8:]))])
    bodies = [pack(">q", number) + bytes(size - 16) + pack(">q", -number) for number in range(4)]
    sending = asyncio.create_task(peer.send(b"".join(frame(body) for body in bodies)))
    for body in bodies:
        assert await peer.receive() == body[:8] + body[-8:]
    await sending


@pytest.mark.parametrize("size", [-1, -(2**31), MIB + 1, 2**31 - 1])
async def test_a_frame_of_an_impossible_size_ends_the_connection(
    connect: Connect, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    peer = connect()
    with caplog.at_level(logging.INFO):
        await peer.send(frame(b"fine") + pack(">i", size))
    assert await peer.receive() == b"fine"
    assert await peer.is_closed()
    assert f"a request of {size} bytes" in caplog.text
    assert peer.connection._server.budget.used == 0


async def test_an_announced_length_costs_nothing(connect: Connect) -> None:
    peer = connect()
    await peer.send(pack(">i", MIB) + b"the beginning")
    assert peer.connection._server.budget.used == FIRST_BUFFER_BYTES
    await peer.send(bytes(MIB - len(b"the beginning")))
    assert len(await peer.receive()) == MIB


async def test_bytes_of_half_a_frame_are_no_sign_of_life_and_a_request_is(connect: Connect) -> None:
    peer = connect()
    server = peer.connection._server
    server.now_ms = 1_000
    await peer.send(frame(b"whole"))
    assert peer.connection.last_active_ms == 1_000
    server.now_ms = 2_000
    await peer.send(pack(">i", 100) + b"beginning")
    assert peer.connection.last_active_ms == 2_000, "it has just begun"
    server.now_ms = 3_000
    await peer.send(b"more")
    assert peer.connection.last_active_ms == 2_000, "and it does not come to an end"
    await peer.send(bytes(100 - len(b"beginningmore")))
    assert peer.connection.last_active_ms == 3_000


# Memory


async def test_many_half_frames_stay_within_the_budget_and_small_requests_go_on() -> None:
    budget = 512 * KIB
    server = StandInServer(echo, budget_bytes=budget)
    peers = [server.connect() for _ in range(40)]
    body = bytes(200 * KIB)
    try:
        for peer in peers:
            peer.socket.send(frame(body)[: 100 * KIB])
            await settle()
        most = budget + server.receive_view.nbytes + len(peers) * SHORT_READ_BYTES
        assert budget <= server.budget.used < most
        assert sum(len(peer.connection._buffer or b"") for peer in peers) == server.budget.used, "all of it is charged"
        other = server.connect()
        peers.append(other)
        for _ in range(10):
            await other.send(frame(b"small"))
            assert await other.receive() == b"small"
    finally:
        for peer in peers:
            peer.close()
    assert server.budget.used == 0


async def test_half_frames_that_all_wait_for_each_other_are_completed_all_the_same() -> None:
    server = StandInServer(echo, budget_bytes=256 * KIB)
    peers = [server.connect() for _ in range(10)]
    body = bytes(150 * KIB)
    sending = []
    try:
        for peer in peers:
            await peer.send(frame(body)[: 60 * KIB])
        sending = [asyncio.create_task(peer.send(frame(body)[60 * KIB :])) for peer in peers]
        received = await asyncio.wait_for(asyncio.gather(*(peer.receive() for peer in peers)), 10)
        assert received == [body] * 10
        await asyncio.gather(*sending)
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5])
async def test_a_few_bytes_of_a_frame_while_memory_is_short_are_the_beginning_of_it(piece_bytes: int) -> None:
    server = StandInServer(echo, budget_bytes=FIRST_BUFFER_BYTES)
    greedy, other = server.connect(), server.connect()
    try:
        await greedy.send(pack(">i", 100 * KIB) + b"beginning")
        whole = frame(b"a small request")
        await other.send(whole[:piece_bytes])
        await other.send(whole[piece_bytes:])
        assert other.has_nothing(), "there is no room for it"
        greedy.close()
        await settle()
        assert await other.receive() == b"a small request"
    finally:
        greedy.close()
        other.close()


async def test_buffers_kept_between_large_frames_are_given_up_for_those_who_need_them() -> None:
    server = StandInServer(echo, budget_bytes=MIB)
    peers = [server.connect() for _ in range(12)]
    body = bytes(200 * KIB)
    try:
        for peer in peers:
            sending = asyncio.create_task(peer.send(frame(body)))
            assert await asyncio.wait_for(peer.receive(), 10) == body, "an idle connection kept the memory"
            await sending
    finally:
        for peer in peers:
            peer.close()
    assert server.budget.used == 0


# Ends


async def test_a_request_that_makes_no_sense_ends_the_connection_after_the_answers_before_it(connect: Connect) -> None:
    def refuse_last(connection: Connection, request: memoryview) -> Parts:
        if bytes(request) == b"nonsense":
            raise ProtocolError("nonsense")
        return echo(connection, request)

    peer = connect(refuse_last)
    await peer.send(frame(b"fine") + frame(b"nonsense") + frame(b"never seen"))
    assert await peer.receive() == b"fine"
    assert await peer.is_closed()


async def test_our_own_mistake_ends_the_connection_and_is_logged(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(connection: Connection, request: memoryview) -> Parts:
        raise KeyError("not foreseen")

    peer = connect(mistaken)
    await peer.send(frame(b"x") + frame(b"y"))
    assert await peer.is_closed()
    assert "not foreseen" in caplog.text


async def test_our_own_mistake_with_a_request_that_had_to_wait_ends_the_connection(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    replies = []

    def second_fails(connection: Connection, request: memoryview) -> None:
        if replies:
            raise KeyError("not foreseen")
        replies.append(connection.reserve_last_slot())

    peer = connect(second_fails)
    await peer.send(frame(b"x") + frame(b"y"))
    replies[0].send([frame(b"answer")])
    await settle()
    assert await peer.receive() == b"answer"
    assert await peer.is_closed()
    assert "not foreseen" in caplog.text


async def test_a_request_without_an_answer_to_give_ends_the_connection(connect: Connect) -> None:
    answering = Answering()
    peer = connect(answering)
    await peer.send(frame(b"x"))
    answering.waiting[0][1].abandon()
    assert await peer.is_closed()


async def test_what_is_parked_is_cancelled_when_the_client_goes(connect: Connect) -> None:
    cancelled = []

    class Parked:
        def give_up(self) -> None: ...

        def cancel(self) -> None:
            cancelled.append(self)

    peer = connect(Answering())
    parked = Parked()
    peer.connection.parked.add(parked, 60.0)
    peer.socket.close()
    await settle()
    assert peer.connection.closed
    assert cancelled == [parked]


async def test_an_answer_that_comes_after_the_end_does_nothing(connect: Connect) -> None:
    answering = Answering()
    peer = connect(answering)
    await peer.send(frame(b"x") + frame(b"y"))
    peer.connection.close("enough")
    answering.answer()
    answering.answer()
    assert await peer.is_closed()


async def test_a_client_that_resets_its_connection_is_forgotten(connect: Connect) -> None:
    answering = Answering()
    peer = connect(answering)
    await peer.send(frame(b"x"))
    peer.socket.close()
    for _ in range(2):
        if answering.waiting:
            answering.answer()
        await settle()
    assert peer.connection.closed
    assert peer.server.gone == [peer.connection]
