"""What tests of gRPC share: stubs over one channel, what a failed call said, requests one by one."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from headrace.rpc import headrace_pb2 as pb
from headrace.rpc import headrace_pb2_grpc as stubs

TIMEOUT_S = 60.0  # a machine that is busy with other things; nothing waits for this when all is well
# No test here gains by a group that waits three seconds for members that do not come.
PROMPT = {"group.initial.rebalance.delay.ms": "0"}


@dataclass(frozen=True)
class Rpc:
    channel: grpc.Channel
    broker: Any
    admin: Any


@contextmanager
def connected(address: str, *more: tuple[str, int]) -> Iterator[Rpc]:
    # gRPC's clients try again after a second, then later and later; a gateway that starts is there sooner.
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500), *more]
    with grpc.insecure_channel(address, options=options) as channel:
        grpc.channel_ready_future(channel).result(TIMEOUT_S)
        yield Rpc(channel, stubs.KafkaBrokerStub(channel), stubs.AdminStub(channel))


@dataclass(frozen=True)
class Refusal:
    status: grpc.StatusCode
    message: str
    reason: str
    kafka_code: int
    retriable: bool
    retry_after_s: int | None
    more: dict[str, str]


def refusal_of(error: grpc.RpcError) -> Refusal:
    """The status and its details; every failure of ours has both, and they agree."""
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    assert status.code == error.code().value[0]
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "headrace"
    has_retry = len(status.details) > 1 and status.details[1].Unpack(retry)
    facts = dict(info.metadata)
    code, retriable = int(facts.pop("kafka_code")), facts.pop("retriable") == "true"
    assert has_retry == retriable
    after_s = retry.retry_delay.seconds if has_retry else None
    return Refusal(error.code(), status.message, info.reason, code, retriable, after_s, facts)


def refused(method: Any, request: Any, **options: Any) -> Refusal:
    with pytest.raises(grpc.RpcError) as caught:
        method(request, **({"timeout": TIMEOUT_S} | options))
    return refusal_of(caught.value)


def records(*values: bytes) -> list[pb.Record]:
    return [pb.Record(value=value) for value in values]


class Sender:
    """The client's side of a stream, request by request."""

    def __init__(self) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()

    def send(self, request: Any) -> None:
        self._requests.put(request)

    def finish(self) -> None:
        self._requests.put(None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests.get, None)


def subscribe(**fields: Any) -> pb.StreamConsumeRequest:
    return pb.StreamConsumeRequest(subscribe=pb.Subscribe(**fields))


def values_of(event: pb.StreamConsumeResponse) -> list[bytes]:
    return [record.value for part in event.records.partitions for record in part.records]


def read_values(stream: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    for event in stream:
        found += values_of(event)
        if len(found) >= count:
            break
    return found
