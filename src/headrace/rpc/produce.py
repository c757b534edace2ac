"""Produce and StreamProduce: records in, offsets out.

Decides how many requests of a stream may be unanswered, and that acks leave in the order of the requests.
"""

import asyncio
from collections.abc import AsyncIterator

from headrace.client.cluster import TopicFacts
from headrace.client.refusals import Refused
from headrace.model.errors import HeadraceError
from headrace.rpc import headrace_pb2 as pb
from headrace.rpc.calls import Write, until_stopped
from headrace.rpc.checks import topic_name
from headrace.rpc.clients import Clients
from headrace.rpc.failures import Failed, Status, failed, stopping
from headrace.rpc.sending import Receipt, send

# With a thousand records a request that is more than a broker's round trip needs; with one each, it still fills
# record batches well.
UNANSWERED_MAX = 256


async def produce(clients: Clients, request: pb.ProduceRequest) -> pb.ProduceResponse:
    receipt = await send(clients, await clients.topic_to_produce(topic_name(request.topic)), request)
    await receipt.complete()
    failure = receipt.failure
    if failure is not None:
        failure.more |= {"written": str(receipt.written), "failed": str(len(receipt.offsets) - receipt.written)}
        raise failure
    return pb.ProduceResponse(partitions=receipt.partitions, offsets=receipt.offsets)


async def stream_produce(clients: Clients, requests: AsyncIterator[pb.ProduceRequest], write: Write) -> None:
    unanswered: asyncio.Queue[Receipt | Failed | None] = asyncio.Queue(UNANSWERED_MAX)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_read(clients, requests, unanswered))
        index = 0
        while (sent := await unanswered.get()) is not None:
            await write(await _ack(index, sent))
            index += 1
    if clients.stopping.is_set():
        raise stopping()


async def _read(
    clients: Clients, requests: AsyncIterator[pb.ProduceRequest], unanswered: "asyncio.Queue[Receipt | Failed | None]"
) -> None:
    """Sends on what comes in. Stops reading while too much is unanswered: gRPC then stops the client."""
    topic = ""
    async for request in until_stopped(clients, requests):
        topic = request.topic or topic
        await unanswered.put(await _sent(clients, topic, request))
    await unanswered.put(None)


async def _sent(clients: Clients, topic: str, request: pb.ProduceRequest) -> Receipt | Failed:
    """A request that makes no sense, or that the broker refuses, fails alone; the stream goes on."""
    try:
        facts: TopicFacts = await clients.topic_to_produce(topic_name(topic))
        return await send(clients, facts, request)
    except (Failed, Refused, HeadraceError) as error:
        return _alone(failed(error))


async def _ack(index: int, sent: Receipt | Failed) -> pb.ProduceAck:
    if isinstance(sent, Failed):
        return pb.ProduceAck(index=index, failure=sent.in_stream())
    await sent.complete()
    ack = pb.ProduceAck(index=index, partitions=sent.partitions, offsets=sent.offsets)
    if sent.failure is not None:
        ack.failure.CopyFrom(_alone(sent.failure).in_stream())
    return ack


def _alone(failure: Failed) -> Failed:
    """A broker that does not answer, for longer than librdkafka tried, fails the others too: the stream ends."""
    if failure.status is Status.UNAVAILABLE and failure.reason == "NO_ANSWER":
        raise failure
    return failure
