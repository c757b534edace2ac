"""Requests that make no sense: each has a clear answer, and the server goes on."""

import socket
from contextlib import suppress

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.config.settings import GatewaySettings
from headrace.rpc import headrace_pb2 as pb
from tests.integration.rpc.kit import TIMEOUT_S, Rpc, records, refused, subscribe

Status = grpc.StatusCode
DESCRIBED = [
    (method.client_streaming, (service.full_name, method.name, GetMessageClass(method.input_type)))
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
METHODS = [method for is_stream, method in DESCRIBED if not is_stream]
STREAMS = [method for is_stream, method in DESCRIBED if is_stream]
# What a stranger's bytes may be answered with; INTERNAL and UNKNOWN would be bugs of ours.
FORESEEN = {Status.OK, Status.INVALID_ARGUMENT, Status.NOT_FOUND, Status.DEADLINE_EXCEEDED, Status.FAILED_PRECONDITION}
FORESEEN |= {Status.ABORTED, Status.OUT_OF_RANGE, Status.ALREADY_EXISTS, Status.UNAVAILABLE}


@pytest.mark.parametrize(
    ("method", "request_", "words"),
    [
        ("Fetch", pb.FetchRequest(), "topic is missing"),
        ("Fetch", pb.FetchRequest(topic="t" * 250), "249 at most"),
        ("Fetch", pb.FetchRequest(topic="t", partition=-1), "partition is -1"),
        ("Fetch", pb.FetchRequest(topic="t", max_bytes=-1), "max_bytes is -1"),
        ("Fetch", pb.FetchRequest(topic="t", max_records=-5), "max_records is -5"),
        ("Fetch", pb.FetchRequest(topic="t", max_wait_ms=60_001), "max_wait_ms is 60001"),
        ("JoinGroup", pb.JoinGroupRequest(), "group_id is missing"),
        ("JoinGroup", pb.JoinGroupRequest(group_id="g", session_timeout_ms=-1), "session_timeout_ms is -1"),
        ("JoinGroup", pb.JoinGroupRequest(group_id="g", protocol_type="x"), "protocols is empty"),
        ("CommitOffset", pb.CommitOffsetRequest(group_id="g", topic="t", offset=-1), "offset is -1"),
    ],
)
def test_a_field_that_cannot_be_is_named(rpc: Rpc, method, request_, words):
    refusal = refused(getattr(rpc.broker, method), request_)
    assert (refusal.status, refusal.reason, refusal.retriable) == (Status.INVALID_ARGUMENT, "INVALID_REQUEST", False)
    assert words in refusal.message


def test_a_message_over_the_limit_is_refused(rpc: Rpc, topic):
    with pytest.raises(grpc.RpcError) as caught:
        rpc.broker.Produce(
            pb.ProduceRequest(topic=topic, records=records(bytes(GatewaySettings().body_bytes_max))), timeout=TIMEOUT_S
        )
    assert caught.value.code() is Status.RESOURCE_EXHAUSTED


def test_bytes_that_are_no_http_end_their_connection_alone(broker, rpc: Rpc):
    host, port = broker.grpc_address.split(":")
    for garbage in (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as stranger:
            stranger.sendall(garbage)
            while stranger.recv(4096):
                pass
    assert rpc.admin.ListGroups(pb.ListGroupsRequest(), timeout=TIMEOUT_S) is not None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(METHODS), st.binary(max_size=200))
def test_any_bytes_in_any_call_have_a_foreseen_answer(rpc: Rpc, method, body):
    service, name, message = method
    call = rpc.channel.unary_unary(f"/{service}/{name}").future(body, timeout=5)
    assert call.code() in FORESEEN, call.details()
    if not is_readable(message, body):
        assert call.code() is Status.INVALID_ARGUMENT


def is_readable(message, body) -> bool:
    try:
        message.FromString(body)
    except DecodeError:
        return False
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(STREAMS), st.lists(st.binary(max_size=200), max_size=3))
def test_any_bytes_in_any_stream_have_a_foreseen_end(rpc: Rpc, method, bodies):
    service, name, message = method
    call = rpc.channel.stream_stream(f"/{service}/{name}")(iter(bodies), timeout=5)
    with suppress(grpc.RpcError):
        for _ in call:
            pass
    assert call.code() in FORESEEN, call.details()
    if bodies and not is_readable(message, bodies[0]):
        assert call.code() is Status.INVALID_ARGUMENT, call.details()


# What a client would send first, by stream.
SENSIBLE = {
    "StreamProduce": pb.ProduceRequest(topic="fuzzed", partition=0, records=records(b"x", b"y")),
    "StreamConsume": subscribe(group_id="fuzzed", topics=["fuzzed"], max_records=5),
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(STREAMS), st.integers(min_value=0), st.binary(min_size=1, max_size=1))
def test_a_sensible_beginning_with_another_byte_has_a_foreseen_end(rpc: Rpc, method, place, byte):
    service, name, _ = method
    body = SENSIBLE[name].SerializeToString()
    place %= len(body)
    call = rpc.channel.stream_stream(f"/{service}/{name}")(iter([body[:place] + byte + body[place + 1 :]]), timeout=1)
    with suppress(grpc.RpcError):
        for _ in call:
            pass
    assert call.code() in FORESEEN, call.details()


def test_every_stream_is_among_them():
    assert {name for _, name, _ in STREAMS} == SENSIBLE.keys()
