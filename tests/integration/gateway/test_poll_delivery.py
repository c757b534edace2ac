"""Polls whose response gets lost: its records come again, and no commit covers them."""

import itertools
import json
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from headrace.testing import LocalBroker
from tests.integration.gateway.conftest import make_topic
from tests.integration.gateway.test_groups import fill, join, poll_until
from tests.patience import awaited

# Longer than an HTTP client of these tests waits for its response.
LONG_WAIT_MS = 60_000
WAIT_S = 60.0
_groups = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True, settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def consumer(rest: httpx.Client, topic: str) -> str:
    """A consumer that has its partition."""
    path = join(rest, f"g-{next(_groups)}", topic)
    awaited(lambda: poll(rest, path, wait_ms=5_000)["assigned"], bool, "the partition is assigned", WAIT_S)
    return path


def poll(rest: httpx.Client, consumer: str, **params: object) -> dict[str, Any]:
    answer = rest.get(f"{consumer}/messages", params={"wait_ms": 10_000, **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def values_of(polled: dict[str, Any]) -> list[str]:
    return [one["value"] for one in polled["messages"]]


def committed(rest: httpx.Client, consumer: str) -> int:
    (row,) = rest.post(f"{consumer}/offsets", json={}).json()["offsets"] or [{"offset": 0}]
    return row["offset"]


@contextmanager
def raw_poll(broker: LocalBroker, consumer: str, wait_ms: int = 10_000) -> Iterator[socket.socket]:
    """A connection on which a poll has been sent, and nothing of its response has been read."""
    place = urlsplit(broker.http_url)
    with socket.create_connection((place.hostname, place.port), timeout=WAIT_S) as connection:
        request = f"GET {consumer}/messages?wait_ms={wait_ms}&max_records=2 HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n"
        connection.sendall(request.encode())
        yield connection


def receive(connection: socket.socket, but_bytes: int = 0) -> bytes:
    """The response, without its last bytes."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1)
    head, _, _ = received.partition(b"\r\n\r\n")
    lines = [line.split(b": ") for line in head.split(b"\r\n")[1:]]
    left = int({name.lower(): value for name, value in lines}[b"content-length"]) - but_bytes
    body = b""
    while len(body) < left:
        body += connection.recv(left - len(body))
    return body


def test_abandoned_poll_does_not_hold_up_the_next(broker, rest, topic, consumer):
    for _ in range(3):
        with raw_poll(broker, consumer, LONG_WAIT_MS):
            pass  # hangs up before there is a record
    values = fill(rest, topic, 2)
    assert values_of(poll(rest, consumer)) == values
    assert committed(rest, consumer) == 2


def hang_up_at_once(connection: socket.socket) -> None: ...


def hang_up_when_it_comes(connection: socket.socket) -> None:
    select.select([connection], [], [], WAIT_S)


def hang_up_after_a_byte(connection: socket.socket) -> None:
    connection.recv(1)


def hang_up_before_the_last_byte(connection: socket.socket) -> None:
    receive(connection, but_bytes=1)


HANG_UPS = [hang_up_at_once, hang_up_when_it_comes, hang_up_after_a_byte, hang_up_before_the_last_byte]


@pytest.mark.parametrize("hang_up", HANG_UPS)
def test_response_that_was_not_read_is_delivered_again(broker, rest, topic, consumer, hang_up):
    values = fill(rest, topic, 4)
    first = poll(rest, consumer, max_records=1)
    assert values_of(first) == values[:1]
    for _ in range(3):
        with raw_poll(broker, consumer) as connection:
            hang_up(connection)
        # Another connection: the server may not have seen yet that the first one has ended.
        assert awaited(lambda: committed(rest, consumer), lambda at: at <= 1, "only the first counts", WAIT_S) == 1
    assert poll_until(rest, consumer, 3) == values[1:]
    assert committed(rest, consumer) == 4


def test_response_that_was_read_is_acknowledged_by_the_next_poll(broker, rest, topic, consumer):
    values = fill(rest, topic, 4)
    with raw_poll(broker, consumer) as connection:
        assert values_of(json.loads(receive(connection))) == values[:2]
    assert values_of(poll(rest, consumer)) == values[2:]
    assert committed(rest, consumer) == 4


def test_poll_naming_an_earlier_delivery_repeats_the_last(rest, topic, consumer):
    values = fill(rest, topic, 5)
    first = poll(rest, consumer, max_records=2)
    assert values_of(first) == values[:2]
    lost = poll(rest, consumer, max_records=2, delivery=first["delivery"])
    again = poll(rest, consumer, max_records=2, delivery=first["delivery"])
    assert values_of(lost) == values_of(again) == values[2:4]
    rest.post(f"{consumer}/offsets", json={"delivery": first["delivery"]}).raise_for_status()
    last = poll(rest, consumer, delivery=again["delivery"])
    assert values_of(last) == values[4:]
    answer = rest.post(f"{consumer}/offsets", json={"delivery": again["delivery"]})
    assert answer.json() == {"offsets": [{"topic": topic, "partition": 0, "offset": 4}]}


def test_delivery_that_is_neither_of_the_last_two_is_refused(rest, topic, consumer):
    fill(rest, topic, 3)
    for _ in range(3):
        last = poll(rest, consumer, max_records=1)
    for number in (last["delivery"] - 2, last["delivery"] + 1):
        answer = rest.get(f"{consumer}/messages", params={"delivery": number})
        assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
        assert rest.post(f"{consumer}/offsets", json={"delivery": number}).status_code == 409
    both = {"delivery": last["delivery"], "offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
    assert rest.post(f"{consumer}/offsets", json=both).status_code == 422


def test_poll_before_the_last_response_acknowledges_nothing(broker, rest, topic, consumer):
    """Two polls in one piece: the second one was sent before its client could have received the first response."""
    place = urlsplit(broker.http_url)
    request = f"GET {consumer}/messages?wait_ms={LONG_WAIT_MS} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
    values = fill(rest, topic, 2)
    with socket.create_connection((place.hostname, place.port), timeout=WAIT_S) as connection:
        connection.sendall(request + request)
        assert values_of(json.loads(receive(connection))) == values
        assert json.loads(receive(connection))["status"] == 409
    assert values_of(poll(rest, consumer, delivery=0)) == values


def test_hang_up_behind_pipelined_polls_loses_nothing(broker, rest, topic, consumer):
    place = urlsplit(broker.http_url)
    request = f"GET {consumer}/messages?wait_ms=2000 HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
    with socket.create_connection((place.hostname, place.port), timeout=WAIT_S) as connection:
        connection.sendall(request + request)
        assert rest.get("/health").status_code == 200  # both have come by then
    values = fill(rest, topic, 3)
    assert poll_until(rest, consumer, 3) == values
    assert committed(rest, consumer) == 3


def test_records_of_a_lost_response_go_to_the_next_member(broker, rest, topic, consumer):
    values = fill(rest, topic, 2)
    with raw_poll(broker, consumer) as connection:
        hang_up_when_it_comes(connection)
    awaited(lambda: committed(rest, consumer), lambda at: at == 0, "nothing is committed", WAIT_S)
    rest.delete(consumer).raise_for_status()
    group = consumer.split("/")[4]
    assert poll_until(rest, join(rest, group, topic), 2) == values


def test_late_consumer_gets_all_that_follows_its_assignment(rest):
    topic = make_topic(rest, partitions=3)
    path = join(rest, f"g-{next(_groups)}", topic, offset_reset="latest")
    awaited(lambda: poll(rest, path, wait_ms=5_000)["assigned"], bool, "the partitions are assigned", WAIT_S)
    for partition in range(3):
        body = {"value": str(partition), "partition": partition}
        rest.post(f"/topics/{topic}/messages", json=body).raise_for_status()
    assert sorted(poll_until(rest, path, 3)) == ["0", "1", "2"]


def test_abandoned_read_gives_its_connection_back(broker, rest, topic):
    """A gateway has 512 connections to a broker: more reads than that, each left while it waits."""
    place = urlsplit(broker.http_url)
    path = f"/topics/{topic}/partitions/0/messages?offset=0&wait_ms={LONG_WAIT_MS}"
    for _ in range(600):
        with socket.create_connection((place.hostname, place.port), timeout=WAIT_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            if rest.get("/health").status_code != 200:  # the read is under way by then
                pytest.fail("the gateway does not answer")
    answer = rest.get(f"/topics/{topic}/partitions/0/messages?offset=0")
    assert answer.status_code == 200, answer.text
