"""A program of its own: a node with gRPC, and one client that streams records in and out of it; prints JSON.

python -m bench.grpc_streams produce|consume MESSAGES
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import grpc
import psutil

from headrace.rpc import headrace_pb2 as pb
from headrace.rpc import headrace_pb2_grpc as stubs
from headrace.testing import LocalBroker

_PER_REQUEST = 1000
_VALUE_BYTES = 100
_PARTITIONS = 4
_READY_S = 60.0
_TOPIC = "bench"
# A group of one waits for nobody: else three seconds of the stream would be waiting.
_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def _requests(messages: int) -> Iterator[pb.ProduceRequest]:
    """Keys that differ, as real ones do; a hundred requests in turn, so that the client is not what is measured."""
    value = b"x" * _VALUE_BYTES
    made = [
        pb.ProduceRequest(
            topic=_TOPIC, records=[pb.Record(key=b"key-%d-%d" % (turn, n), value=value) for n in range(_PER_REQUEST)]
        )
        for turn in range(100)
    ]
    for number in range(messages // _PER_REQUEST):
        yield made[number % len(made)]


def _produce(broker: Any, messages: int) -> None:
    for ack in broker.StreamProduce(_requests(messages)):
        if ack.HasField("failure"):
            sys.exit(f"produce failed: {ack.failure.message}")


def _consume(broker: Any, messages: int) -> None:
    subscribe = pb.Subscribe(group_id="bench", topics=[_TOPIC])
    stream = broker.StreamConsume(iter([pb.StreamConsumeRequest(subscribe=subscribe)]))
    count = 0
    for event in stream:
        count += sum(len(part.records) for part in event.records.partitions)
        if count >= messages:
            break
    stream.cancel()


def _cpu_s(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def main() -> None:
    kind, messages = sys.argv[1], int(sys.argv[2])
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        LocalBroker(data_dir=folder, gateway=True, settings=_SETTINGS) as node,
        grpc.insecure_channel(node.grpc_address) as channel,
    ):
        grpc.channel_ready_future(channel).result(_READY_S)
        stubs.AdminStub(channel).CreateTopic(pb.CreateTopicRequest(name=_TOPIC, partitions=_PARTITIONS))
        broker = stubs.KafkaBrokerStub(channel)
        _produce(broker, 10 * _PER_REQUEST)  # connections, threads, code
        if kind == "consume":
            _produce(broker, messages)
        (server,) = [
            one.pid for one in psutil.Process(node.pid).children() if "headrace.app.grpc_process" in one.cmdline()
        ]
        began, cpu_s = time.perf_counter(), _cpu_s([node.pid, server])
        (_produce if kind == "produce" else _consume)(broker, messages)
        took_s, cpu_s = time.perf_counter() - began, _cpu_s([node.pid, server]) - cpu_s
    print(json.dumps({"rate": messages / took_s, "cpu": cpu_s / messages * 1e6}))


if __name__ == "__main__":
    main()
