"""Too many, too fast, too greedy: connections and answers in numbers."""

import random
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack

import pytest

from headrace.testing import LocalBroker
from tests.integration.bad_input.kit import MIB, NONE, batch, resident_bytes
from tests.integration.raw import API_VERSIONS, FETCH, SECONDS_MAX, RawConnection, fetch_body, request


def test_a_client_that_never_reads_its_answers_is_held_back_in_bounded_memory(broker, topic):
    value = random.Random(1).randbytes(900_000)
    before = resident_bytes(broker)
    with RawConnection(broker.port) as writer, RawConnection(broker.port) as greedy:
        assert writer.produce_error(topic, batch(value)) == (NONE, 0)
        question = request(FETCH, 4, fetch_body(topic))
        greedy._socket.settimeout(1.0)
        sent = 0
        try:
            # 2,000 answers of 0.9 MB each would be 1.8 GB.
            while sent < 2000 * len(question):
                sent += greedy._socket.send(question * 10)
        except TimeoutError:
            pass
        assert writer.is_served()
        assert resident_bytes(broker) - before < 64 * MIB


def test_an_address_has_a_cap_on_its_connections():
    with LocalBroker(settings={"max.connections.per.ip": "5"}) as small, ExitStack() as open_ones:
        connections = [open_ones.enter_context(RawConnection(small.port)) for _ in range(5)]
        assert all(connection.is_served() for connection in connections)
        with RawConnection(small.port) as one_too_many:
            assert one_too_many.is_closed_by_peer()
        assert connections[0].is_served(), "those that are in stay in"
        connections[4].close()
        while True:  # the broker may not have noticed yet that one has left
            with RawConnection(small.port) as next_client:
                try:
                    if next_client.is_served():
                        break
                except ConnectionError:
                    continue


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 12_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"10,000 connections need {wanted} descriptors, this machine allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("_many_descriptors")
def test_ten_thousand_connections_are_all_served_in_bounded_memory():
    question = request(API_VERSIONS, 0)
    with LocalBroker() as busy, ExitStack() as open_ones:
        before = resident_bytes(busy)
        connections = []
        for _ in range(10_000):
            one = socket.create_connection(("127.0.0.1", busy.port), SECONDS_MAX)
            connections.append(open_ones.enter_context(one))
        for connection in connections:
            connection.sendall(question)
        assert all(connection.recv(8)[4:] == pack(">i", 7) for connection in connections)
        assert resident_bytes(busy) - before < 200 * MIB, "twenty kilobytes each"
        with RawConnection(busy.port) as next_client:
            assert next_client.is_served()
