"""The broker and the server killed under load: nothing acked is lost, and streams go on or say why not."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from headrace.rpc import headrace_pb2 as pb
from headrace.testing import LocalBroker
from tests.integration.rpc.kit import PROMPT, TIMEOUT_S, Rpc, connected, records, refusal_of, subscribe
from tests.patience import until

REQUESTS, PER_REQUEST = 400, 50


@contextmanager
def server_alone(broker: LocalBroker, folder: Path) -> Iterator[tuple[str, int]]:
    """gRPC in front of the broker, which it outlives: its address and pid."""
    said = folder / "rpc.log"
    settings = '{"grpc_port": 0}'
    with said.open("w") as log:
        command = [sys.executable, "-m", "headrace.app.grpc_process", "--settings-json", settings]
        process = subprocess.Popen([*command, "--bootstrap", broker.bootstrap], stderr=log)
    try:
        until(lambda: "gRPC on " in said.read_text(), said.read_text, TIMEOUT_S)
        yield said.read_text().split("gRPC on ")[1].split(",")[0], process.pid
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def everything(rpc: Rpc, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        answer = rpc.broker.Fetch(pb.FetchRequest(topic=topic, offset=len(found)), timeout=TIMEOUT_S)
        found += [record.value for record in answer.records]
        if answer.next_offset >= answer.high_watermark:
            return found


def requests(topic: str, sent: threading.Semaphore) -> Iterator[pb.ProduceRequest]:
    for number in range(REQUESTS):
        values = [b"%06d" % (number * PER_REQUEST + index) for index in range(PER_REQUEST)]
        yield pb.ProduceRequest(topic=topic, partition=0, records=records(*values))
        sent.release()


@pytest.mark.slow
def test_streams_go_on_over_a_killed_broker_and_nothing_acked_is_lost_or_doubled(tmp_path):
    with (
        LocalBroker(memory=False, settings=PROMPT) as broker,
        server_alone(broker, tmp_path) as (address, _),
        connected(address) as rpc,
    ):
        rpc.admin.CreateTopic(pb.CreateTopicRequest(name="t", partitions=1))
        consumed: list[bytes] = []
        reading = rpc.broker.StreamConsume(iter([subscribe(group_id="g", topics=["t"])]))
        reader = threading.Thread(target=_collect, args=(reading, consumed, REQUESTS * PER_REQUEST))
        reader.start()
        sent = threading.Semaphore(0)
        acks = iter(rpc.broker.StreamProduce(requests("t", sent), timeout=TIMEOUT_S))
        answered = [next(acks) for _ in range(REQUESTS // 4)]
        broker.kill()
        broker.restart()
        answered += acks
        assert [ack.index for ack in answered] == list(range(REQUESTS))
        assert not any(ack.HasField("failure") for ack in answered)
        expected = [b"%06d" % number for number in range(REQUESTS * PER_REQUEST)]
        assert everything(rpc, "t") == expected, "acked with idempotence: all of them, once, in order"
        reader.join(TIMEOUT_S)
        assert sorted(set(consumed)) == expected
        reading.cancel()


def _collect(stream, found: list[bytes], count: int) -> None:
    for event in stream:
        found += [record.value for part in event.records.partitions for record in part.records]
        if len(set(found)) >= count:
            return


def test_calls_without_a_broker_end_at_their_deadline_and_are_answered_when_it_is_back(tmp_path):
    with LocalBroker(memory=False) as broker, server_alone(broker, tmp_path) as (address, _), connected(address) as rpc:
        rpc.admin.CreateTopic(pb.CreateTopicRequest(name="t", partitions=1))
        broker.kill()
        with pytest.raises(grpc.RpcError) as late:
            rpc.broker.Fetch(pb.FetchRequest(topic="t"), timeout=0.5)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError) as late:
            rpc.broker.Produce(pb.ProduceRequest(topic="t", records=records(b"x")), timeout=0.5)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        waiting = rpc.broker.GetTopicMetadata.future(pb.GetTopicMetadataRequest(), timeout=TIMEOUT_S)
        broker.restart()
        assert [topic.name for topic in waiting.result().topics] == ["t"]


def test_a_server_that_is_stopped_ends_its_streams_with_a_word(tmp_path):
    with (
        LocalBroker(settings=PROMPT) as broker,
        server_alone(broker, tmp_path) as (address, pid),
        connected(address) as rpc,
    ):
        rpc.admin.CreateTopic(pb.CreateTopicRequest(name="t", partitions=1))
        reading = rpc.broker.StreamConsume(iter([subscribe(group_id="g", topics=["t"])]))
        assert next(reading).WhichOneof("event") == "assignment"
        more = threading.Event()
        writing = rpc.broker.StreamProduce(_one_and_then(more))
        assert list(next(writing).offsets) == [0]
        os.kill(pid, signal.SIGTERM)
        for stream in (reading, writing):
            with pytest.raises(grpc.RpcError) as caught:
                list(stream)
            refusal = refusal_of(caught.value)
            assert (refusal.status, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_STOPPING")
        more.set()


def _one_and_then(more: threading.Event) -> Iterator[pb.ProduceRequest]:
    yield pb.ProduceRequest(topic="t", records=records(b"x"))
    more.wait(TIMEOUT_S)
