"""gRPC calls on one connection, against a peer in this process."""

import asyncio
from collections.abc import Callable

import pytest
from h2.errors import ErrorCodes
from h2.events import PingReceived, RequestReceived, StreamReset
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.etcd.grpc_client.call import (
    UNREAD_BYTES_MAX,
    Call,
    CallFailed,
    ChannelClosed,
    Status,
    failure_in,
)
from headrace.metadata.etcd.grpc_client.channel import Channel
from headrace.metadata.etcd.grpc_client.framing import MESSAGE_BYTES_MAX, message_frame
from headrace.metadata.etcd.grpc_client.http2 import WINDOW_BYTES
from tests.unit.metadata.etcd.grpc_peer import METHOD, OK, Peer

MIB = 1024 * 1024
FIRST, SECOND = 1, 3  # the numbers of a client's streams


def begun(channel: Channel, message: bytes = b"question") -> Call:
    call = channel.open(METHOD)
    call.write(message, is_last=True)
    return call


async def failure_of(call: Call) -> CallFailed:
    with pytest.raises(CallFailed) as raised:
        await anext(call)
    return raised.value


async def test_a_request_is_told_as_grpc_wants_it() -> None:
    peer = Peer()
    channel = peer.connected()
    asking = asyncio.create_task(channel.ask(METHOD, b"question", [(b"token", b"secret")], seconds_max=2.5))
    await asyncio.sleep(0)
    peer.answer(FIRST, b"answer")
    assert await asking == b"answer"
    (request,) = peer.all(RequestReceived)
    headers = dict(request.headers)
    assert (headers[":path"], headers[":scheme"], headers[":authority"]) == (METHOD, "http", "peer:1")
    assert (headers["te"], headers["content-type"]) == ("trailers", "application/grpc")
    assert (headers["grpc-timeout"], headers["token"]) == ("2500m", "secret")
    assert peer.data(FIRST) == b"\0\0\0\0\x08question"
    await channel.close()


async def test_a_message_may_come_in_pieces_and_several_in_one() -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.accept(FIRST)
    for byte in message_frame(b"slowly"):
        peer.send(FIRST, bytes((byte,)))
    peer.send(FIRST, message_frame(b"one") + message_frame(b"") + message_frame(b"three"))
    peer.end(FIRST, OK)
    assert [message async for message in call] == [b"slowly", b"one", b"", b"three"]


async def test_an_answer_may_be_a_status_alone() -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.end(FIRST, [(":status", "200"), ("grpc-status", "5"), ("grpc-message", "no such lease: 100%25 %e2%82%ac")])
    failure = await failure_of(call)
    assert (failure.status, failure.details) == (Status.NOT_FOUND, "no such lease: 100% €")


async def test_a_status_may_follow_a_message() -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.accept(FIRST)
    peer.send(FIRST, message_frame(b"before"))
    peer.end(FIRST, [("grpc-status", "14"), ("grpc-message", "etcdserver: no leader")])
    assert await anext(call) == b"before"
    failure = await failure_of(call)
    assert (failure.status, failure.details) == (Status.UNAVAILABLE, "etcdserver: no leader")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b":status": b"404"}, Status.UNIMPLEMENTED),
        ({b":status": b"503"}, Status.UNAVAILABLE),
        ({b":status": b"302"}, Status.UNKNOWN),
        ({b":status": b"200"}, Status.UNKNOWN),
        ({b":status": b"503", b"grpc-status": b"7"}, Status.PERMISSION_DENIED),
        ({b":status": b"200", b"grpc-status": b"99"}, Status.UNKNOWN),
        ({b":status": b"200", b"grpc-status": b"x"}, Status.UNKNOWN),
        ({b":status": b"200", b"grpc-status": b"2", b"grpc-message": b"%ff%zz\xff"}, Status.UNKNOWN),
    ],
)
def test_whatever_an_answer_says_becomes_a_status(headers: dict[bytes, bytes], status: Status) -> None:
    failure = failure_in(headers)
    assert failure is not None
    assert failure.status is status


async def test_a_web_servers_page_is_not_read() -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.accept(FIRST, status=503)
    assert (await failure_of(call)).status is Status.UNAVAILABLE
    assert [event.stream_id for event in peer.all(StreamReset)] == [FIRST]


async def test_an_answer_that_is_cut_short_is_none() -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.accept(FIRST)
    peer.send(FIRST, message_frame(b"a whole one")[:-1])
    peer.end(FIRST, OK)
    assert (await failure_of(call)).status is Status.INTERNAL


async def test_what_is_larger_than_the_peers_windows_goes_out_as_they_open() -> None:
    peer = Peer()
    peer.takes_data = False
    channel = peer.connected()
    large = bytes(3 * MIB // 2)
    begun(channel, large)
    assert len(peer.data(FIRST)) == 65_535
    peer.takes_data = True
    peer.http.acknowledge_received_data(65_535, FIRST)
    while len(peer.data(FIRST)) < len(large):
        before = len(peer.data(FIRST))
        peer.speak()
        assert len(peer.data(FIRST)) > before, "its windows are open, and nothing comes"
    assert peer.data(FIRST) == message_frame(large)


async def test_what_is_larger_than_our_windows_comes_in_without_a_stop() -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.accept(FIRST)
    large = message_frame(bytes(3 * WINDOW_BYTES))
    for start in range(0, len(large), 16_384):
        peer.send(FIRST, large[start : start + 16_384])
    assert len(await anext(call)) == 3 * WINDOW_BYTES


async def test_a_reader_that_sleeps_holds_back_its_own_stream_only() -> None:
    peer = Peer()
    channel = peer.connected()
    unread, other = begun(channel), begun(channel)
    peer.accept(FIRST)
    sent = 0
    while peer.http.local_flow_control_window(FIRST) > 0:
        size = min(16_384, peer.http.local_flow_control_window(FIRST)) - 5
        peer.send(FIRST, message_frame(bytes(size)))
        sent += 1
        assert sent * 16_384 < 3 * (UNREAD_BYTES_MAX + WINDOW_BYTES), "nothing holds it back"
    peer.answer(SECOND, b"at once")
    assert await anext(other) == b"at once"
    for _ in range(sent):
        await anext(unread)
    assert peer.http.local_flow_control_window(FIRST) >= WINDOW_BYTES // 2


async def test_a_call_waits_until_the_peer_has_room_for_another_stream() -> None:
    peer = Peer(streams_max=1)
    channel = peer.connected()
    first, second = begun(channel), begun(channel)
    assert len(peer.all(RequestReceived)) == 1
    peer.answer(FIRST, b"one")
    peer.answer(SECOND, b"two")
    assert (await anext(first), await anext(second)) == (b"one", b"two")


async def test_a_peer_that_goes_away_may_answer_what_it_has_heard() -> None:
    peer = Peer()
    channel = peer.connected()
    heard, unheard = begun(channel), begun(channel)
    peer.http.send_headers(FIRST, [(":status", "200")])
    after = peer.http.data_to_send()
    peer.say(goaway(last_stream_id=FIRST) + after)
    failure = await failure_of(unheard)
    assert (failure.status, failure.may_have_begun) == (Status.UNAVAILABLE, False)
    assert not (await failure_of(begun(channel))).may_have_begun
    peer.send(FIRST, message_frame(b"still here"))
    assert await anext(heard) == b"still here"
    peer.hang_up()
    assert (await failure_of(heard)).may_have_begun


async def test_a_connection_that_breaks_ends_its_calls() -> None:
    peer = Peer()
    channel = peer.connected()
    call, not_begun = begun(channel), channel.open(METHOD)
    peer.accept(FIRST)
    peer.hang_up()
    failure = await failure_of(call)
    assert (failure.status, failure.may_have_begun) == (Status.UNAVAILABLE, True)
    assert not (await failure_of(not_begun)).may_have_begun
    assert not (await failure_of(begun(channel))).may_have_begun
    assert peer.is_closed


@pytest.mark.parametrize(
    ("code", "may_have_begun"), [(ErrorCodes.INTERNAL_ERROR, True), (ErrorCodes.REFUSED_STREAM, False), (4711, True)]
)
async def test_a_stream_that_the_peer_breaks_off(code: int, may_have_begun: bool) -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.http.reset_stream(FIRST, code)
    peer.speak()
    failure = await failure_of(call)
    assert (failure.status, failure.may_have_begun) == (Status.UNAVAILABLE, may_have_begun)


async def test_a_deadline_ends_the_call_on_both_sides() -> None:
    peer = Peer()
    with pytest.raises(CallFailed) as raised:
        await peer.connected().ask(METHOD, b"question", seconds_max=0.001)
    assert raised.value.status is Status.DEADLINE_EXCEEDED
    assert [event.error_code for event in peer.all(StreamReset)] == [ErrorCodes.CANCEL]


async def test_whoever_is_cancelled_cancels_the_call() -> None:
    peer = Peer()
    asking = asyncio.create_task(peer.connected().ask(METHOD, b"question", seconds_max=60))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [event.error_code for event in peer.all(StreamReset)] == [ErrorCodes.CANCEL]


async def test_what_comes_for_a_cancelled_call_is_dropped() -> None:
    peer = Peer()
    channel = peer.connected()
    call = begun(channel)
    peer.http.send_headers(FIRST, [(":status", "200")])
    peer.http.send_data(FIRST, message_frame(b"too late"))
    call.cancel()
    peer.speak()
    assert (await failure_of(call)).status is Status.CANCELLED
    other = begun(channel)
    peer.answer(SECOND, b"answer")
    assert await anext(other) == b"answer"


async def test_a_peer_that_does_not_answer_pings_is_given_up() -> None:
    peer = Peer(answers_pings=False)
    channel = peer.connected(ping_after_seconds=0, ping_answer_seconds_max=0)
    failure = await failure_of(begun(channel))
    assert (failure.status, failure.may_have_begun) == (Status.UNAVAILABLE, True)
    assert "ping" in failure.details
    assert peer.is_closed


async def test_a_peer_that_answers_pings_is_kept() -> None:
    peer = Peer()
    channel = peer.connected(ping_after_seconds=0, ping_answer_seconds_max=0)
    begun(channel)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(peer.all(PingReceived)) > 3
    assert not channel.is_lost
    await channel.close()


async def test_nobody_is_pinged_while_nothing_is_asked() -> None:
    """etcd breaks with whoever does."""
    peer = Peer(answers_pings=False)
    channel = peer.connected(ping_after_seconds=0, ping_answer_seconds_max=0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert peer.all(PingReceived) == []
    await channel.close()


def goaway(*, last_stream_id: int) -> bytes:
    return b"\0\0\x08\x07\0\0\0\0\0" + last_stream_id.to_bytes(4, "big") + bytes(4)


def in_data(prefix: bytes) -> Callable[[Peer], bytes]:
    def say(peer: Peer) -> bytes:
        peer.http.send_headers(FIRST, [(":status", "200")])
        peer.http.send_data(FIRST, prefix)
        return peer.http.data_to_send()

    return say


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda _: b"\0\0\x04\x08\0\0\0\0\x01\0\0\0\0",  # a window that opens by nothing
        lambda _: b"\0\0\0\x07\0\0\0\0\0",  # a GOAWAY without its fields
        lambda _: b"\0\0\x01\x01\x04\0\0\0\x01\xff",  # headers that cannot be decoded
        in_data(b"\x01\0\0\0\x01x"),
        in_data(b"\0" + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")),
    ],
    ids=["HTTP/1", "window", "goaway", "headers", "compressed", "oversized"],
)
async def test_nonsense_closes_the_connection(nonsense: Callable[[Peer], bytes]) -> None:
    peer = Peer()
    call = begun(peer.connected())
    peer.say(nonsense(peer))
    failure = await failure_of(call)
    assert failure.status is Status.UNAVAILABLE
    assert "does not speak gRPC as we do" in failure.details
    assert peer.is_closed


@given(st.binary(max_size=100) | st.builds(bytes, st.lists(st.integers(0, 9), max_size=100)))
async def test_no_bytes_raise_anything_else(data: bytes) -> None:
    peer = Peer()
    channel = peer.connected()
    begun(channel)
    peer.say(data)
    await channel.close()


@given(st.integers(0, 200), st.integers(0, 255))
async def test_no_byte_of_an_answer_raises_anything_else_when_it_is_another(place: int, byte: int) -> None:
    peer = Peer()
    channel = peer.connected()
    begun(channel)
    peer.http.send_headers(FIRST, [(":status", "200"), ("content-type", "application/grpc")])
    peer.http.send_data(FIRST, message_frame(b"answer"))
    peer.http.send_headers(FIRST, [*OK, ("grpc-message", "all is well")], end_stream=True)
    answer = bytearray(peer.http.data_to_send())
    answer[place % len(answer)] = byte
    peer.say(bytes(answer))
    await channel.close()


async def test_closing_waits_for_calls_under_way_as_long_as_it_may() -> None:
    peer = Peer()
    channel = peer.connected()
    call = begun(channel)
    closing = asyncio.create_task(channel.close(grace_seconds=60))
    await asyncio.sleep(0)
    assert not (await failure_of(begun(channel))).may_have_begun
    peer.answer(FIRST, b"answer")
    assert await anext(call) == b"answer"
    await closing
    assert peer.is_closed


async def test_closing_breaks_calls_under_way() -> None:
    peer = Peer()
    channel = peer.connected()
    call = begun(channel)
    await channel.close()
    failure = await failure_of(call)
    assert isinstance(failure, ChannelClosed)
    assert failure.may_have_begun
