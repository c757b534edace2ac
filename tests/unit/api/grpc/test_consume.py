"""What a stream commits when its client names the number of a records event."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.api.grpc.consume import Packed, _Stream
from headrace.api.grpc.errors import RpcError
from headrace.client.aio.threaded_consumer import Assigned, PartitionOffset, Read
from headrace.rpc import headrace_pb2 as pb

MIDDLE, END = PartitionOffset("t", 0, 5), PartitionOffset("t", 0, 10)
PORTION = [Packed(1, b"first", (MIDDLE,)), Packed(2, b"second", (END,))]


class Consumer:
    """As much of a ThreadedConsumer as a stream uses: one portion of two messages, and its commits."""

    def __init__(self) -> None:
        self.events: list[Any] = [Assigned((PartitionOffset("t", 0),)), Read(PORTION, 1)]
        self.committed: list[list[PartitionOffset]] = []
        self.stored: list[list[PartitionOffset]] = []

    async def next_event(self) -> Any:
        return self.events.pop(0) if self.events else await asyncio.Event().wait()

    async def commit(self, places: list[PartitionOffset], assignment: int | None = None) -> None:
        assert assignment in (None, 1)
        self.committed.append(places)

    def store(self, places: list[PartitionOffset], assignment: int) -> None:
        assert assignment == 1
        self.stored.append(places)

    def taken(self) -> None: ...


class Client:
    """Receives messages, and sends a request in the moment in which it has received `wanted`."""

    def __init__(self, wanted: bytes, request: pb.StreamConsumeRequest) -> None:
        self.wanted, self.request = wanted, request
        self.has_received = asyncio.Event()
        self.answers: list[pb.CommittedEvent] = []

    async def write(self, message: pb.StreamConsumeResponse | bytes) -> None:
        if message == self.wanted:
            self.has_received.set()
        if isinstance(message, pb.StreamConsumeResponse) and message.WhichOneof("event") == "committed":
            self.answers.append(message.committed)
        for _ in range(5):
            await asyncio.sleep(0)  # the request handler runs before the write returns

    async def requests(self) -> AsyncIterator[pb.StreamConsumeRequest]:
        await self.has_received.wait()
        yield self.request


async def after(received: bytes, request: pb.StreamConsumeRequest, *, auto_commit: bool = False) -> tuple[Any, Client]:
    consumer, client = Consumer(), Client(received, request)
    subscribe = pb.Subscribe(group_id="g", topics=["t"], auto_commit=auto_commit)
    stream = _Stream(consumer, subscribe, client.write)  # type: ignore[arg-type]
    passing = asyncio.create_task(stream.pass_on())
    try:
        await stream.serve_requests(client.requests())
    finally:
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
    return consumer, client


def commit(number: int) -> pb.StreamConsumeRequest:
    return pb.StreamConsumeRequest(commit=pb.Commit(number=number))


def acknowledge(number: int) -> pb.StreamConsumeRequest:
    return pb.StreamConsumeRequest(acknowledge=pb.Acknowledge(number=number))


@pytest.mark.parametrize(
    ("received", "number", "end"), [(b"first", 1, MIDDLE), (b"second", 1, MIDDLE), (b"second", 2, END)]
)
async def test_commit_covers_records_up_to_its_number(received: bytes, number: int, end: PartitionOffset) -> None:
    consumer, client = await after(received, commit(number))
    assert consumer.committed == [[end]]
    assert [one.offset for one in client.answers[0].offsets] == [end.offset]


@pytest.mark.parametrize("number", [0, -1, 3])
async def test_commit_of_what_was_not_sent_fails(number: int) -> None:
    consumer, client = await after(b"second", commit(number))
    assert (consumer.committed, client.answers[0].failure.reason) == ([], "INVALID_REQUEST")


async def test_auto_commit_stores_what_is_acknowledged_only() -> None:
    consumer, _ = await after(b"second", acknowledge(1), auto_commit=True)
    assert consumer.stored == [[MIDDLE]]


async def test_acknowledge_without_auto_commit_is_refused() -> None:
    with pytest.raises(RpcError, match="auto_commit"):
        await after(b"first", acknowledge(1))
