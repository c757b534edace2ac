"""Strangers at the HTTP port: too much, too deep, too slow, too many. Clear answers, and memory that stays bounded."""

import json
import random
import resource
import select
import socket
from contextlib import suppress

import httpx
import psutil
import pytest

from headrace.api.rest.http import HELD_BYTES_MAX
from headrace.api.rest.server import HEAD_BYTES_MAX
from tests.patience import until

MIB = 1024 * 1024


def address_of(broker) -> tuple[str, int]:
    host, port = broker.http_url.removeprefix("http://").split(":")
    return host, int(port)


def raw(broker, request: bytes) -> bytes:
    with socket.create_connection(address_of(broker), timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["detail"]


def gateway_rss(broker) -> int:
    (child,) = [one for one in psutil.Process(broker.pid).children() if "headrace.app.rest_process" in one.cmdline()]
    rss: int = child.memory_info().rss
    return rss


def test_a_body_over_the_limit_is_refused_before_it_is_read(broker, topic):
    head = f"POST /topics/{topic}/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    answer = raw(broker, f"{head}Content-Length: 99999999999\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"application/problem+json" in answer
    assert b"gateway.body.max.bytes" in answer


def test_a_body_that_does_not_say_how_long_it_is_ends_at_the_limit(broker, rest, topic):
    before = gateway_rss(broker)

    def endless():
        for _ in range(64):
            yield b"x" * MIB

    for path in (f"/topics/{topic}/messages", "/api/v1/topics"):
        try:
            answer = rest.post(path, content=endless(), headers={"content-type": "application/json"})
        except httpx.HTTPError:
            continue  # hung up on while still sending: as good as an answer
        assert problem(answer)[0] == 413
    assert gateway_rss(broker) - before < 100 * MIB


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-ndjson"])
def test_bodies_that_do_not_end_leave_room_for_others(broker, rest, topic, media_type):
    before, count, size = gateway_rss(broker), 40, 15 * MIB
    head = f"POST /topics/{topic}/messages HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\n"
    request = f"{head}Content-Length: {size + 1}\r\n\r\n".encode() + b"x" * size
    stalled: list[socket.socket] = []
    refused = 0
    try:
        for _ in range(count):
            connection = socket.create_connection(address_of(broker), timeout=60)
            stalled.append(connection)
            with suppress(ConnectionError):  # refused while it is being sent
                connection.sendall(request)
        readable, _, _ = select.select(stalled, [], [], 60)
        answers = [connection.recv(1024) for connection in readable]
        refused = sum(answer.startswith(b"HTTP/1.1 503") for answer in answers)
        assert refused == len(answers) > 0
        assert gateway_rss(broker) - before < HELD_BYTES_MAX + 150 * MIB
        assert rest.post(f"/topics/{topic}/messages", json={"value": "small"}).status_code == 200
    finally:
        for connection in stalled:
            connection.close()
    large = {"content": b"x" * 500_000, "headers": {"content-type": "text/plain"}}
    until(lambda: rest.post(f"/topics/{topic}/messages", **large).status_code == 200, "there is room again", 60)


def test_a_line_without_an_end_is_refused(broker, rest, topic):
    def one_line():
        for _ in range(32):
            yield b"x" * MIB

    try:
        answer = rest.post(
            f"/topics/{topic}/messages", content=one_line(), headers={"content-type": "application/x-ndjson"}
        )
    except httpx.HTTPError:
        return
    assert problem(answer)[0] == 413


@pytest.mark.parametrize("path", ["/topics/{topic}/messages", "/topics", "/consumers/g/offsets"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"value":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"value": "\xff\xfe"}',
        b'{"value": "\\ud800"}',
        b'{"value": NaN}',
        b"{",
        b"",
    ],
    ids=["deep list", "deep object", "not UTF-8", "half a character", "not a number", "cut short", "nothing"],
)
def test_a_body_that_is_no_json_is_told_so(rest, topic, path, body):
    answer = rest.post(path.format(topic=topic), content=body, headers={"content-type": "application/json"})
    assert problem(answer)[0] in (400, 422)


def test_a_content_type_that_nobody_knows_is_told_which_there_are(rest, topic):
    form = rest.post(f"/topics/{topic}/messages", data={"value": "x"})
    assert problem(form)[0] == 415
    assert "application/json" in form.json()["detail"]
    nothing = rest.post(f"/topics/{topic}/messages", content=b"x")
    assert problem(nothing)[0] == 415


def test_a_message_that_the_topic_does_not_take_is_too_large(rest, topic):
    incompressible = random.Random(1).randbytes(2 * MIB).hex()
    answer = rest.post(f"/topics/{topic}/messages", json={"value": incompressible})
    assert problem(answer)[0] == 413
    assert answer.json()["kafka_error"] == "MESSAGE_TOO_LARGE"


def test_a_huge_head_is_refused(broker):
    answer = raw(broker, b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (HEAD_BYTES_MAX + 1) + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["status"] == 431


def test_what_is_not_http_is_told_so(broker):
    answer = raw(broker, b"\x00\x00\x00\x12\x00\x12\x00\x03\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer


def test_paths_that_are_no_text_are_not_found(broker, rest):
    answer = raw(broker, b"POST /topics/%ff%fe/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
    ],
)
def test_other_web_pages_may_not_send(broker, rest, topic, headers, allowed):
    for path, content_type in ((f"/topics/{topic}/messages", "text/plain"), ("/topics", "application/json")):
        answer = rest.post(path, content=b"x", headers={"content-type": content_type, **headers})
        assert (answer.status_code != 403) == allowed
        assert "access-control-allow-origin" not in answer.headers


def test_a_page_from_this_very_address_may_send(broker, rest, topic):
    def post(origin: str, host: str) -> int:
        headers = {"origin": origin, "host": host, "content-type": "text/plain"}
        return rest.post(f"/topics/{topic}/messages", content=b"x", headers=headers).status_code

    own = broker.http_url.removeprefix("http://")
    assert post(broker.http_url, own) == 200
    assert post("http://rebound.example:1", "rebound.example:1") == 403, "a name that somebody gave to loopback"


@pytest.mark.slow
def test_five_thousand_idle_connections_leave_room_for_a_request(broker, rest, topic):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(5_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert count >= 1_000, "too few descriptors for this test"
    before = gateway_rss(broker)
    idle: list[socket.socket] = []
    try:
        idle.extend(socket.create_connection(address_of(broker), timeout=60) for _ in range(count))
        answer = httpx.post(f"{broker.http_url}/topics/{topic}/messages", json={"value": "x"}, timeout=60)
        assert answer.status_code == 200
        assert gateway_rss(broker) - before < 150 * MIB
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("content_type", ["application/json", "application/x-ndjson", "text/plain"])
def test_a_partition_that_cannot_be_is_refused_whatever_the_body(rest, topic, content_type):
    answer = rest.post(
        f"/topics/{topic}/messages?partition=-669&acks=none",
        content=b'{"value": 1}\n',
        headers={"content-type": content_type},
    )
    assert answer.status_code == 422
    assert "partition=-669" in answer.json()["detail"]
