"""Broker and gateway as one program: they start and stop together, and the broker never notices the gateway's end."""

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from confluent_kafka import Producer

from headrace.process.runtime import BROKER_SLICE_NS
from headrace.testing import LocalBroker
from tests.gateways import gateway_alone
from tests.integration.raw import RawConnection
from tests.patience import until
from tests.turns import kernel_gives_turns, turns_of

START = [sys.executable, "-m", "headrace.cli.main", "start", "--memory", "--listen", "127.0.0.1:0"]
WAIT_S = 30.0


REST, GRPC = "headrace.app.rest_process", "headrace.app.grpc_process"


def companion_of(broker: LocalBroker, module: str = REST) -> psutil.Process:
    (child,) = [one for one in psutil.Process(broker.pid).children() if module in one.cmdline()]
    return child


def is_gone(process: psutil.Process) -> bool:
    """Nobody may be there to bury it: a zombie has ended too."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition) -> None:
    until(condition, "it comes true", WAIT_S)


def test_the_broker_has_short_turns_and_those_beside_it_have_ordinary_ones_and_step_back():
    with LocalBroker(gateway=True, settings={"gateway.nice": "3"}) as broker:
        assert httpx.get(f"{broker.http_url}/ready", timeout=WAIT_S).status_code == 200
        beside = [companion_of(broker, module).pid for module in (REST, GRPC)]
        ordinary = turns_of(os.getpid())
        assert turns_of(broker.pid) == (BROKER_SLICE_NS if kernel_gives_turns() else ordinary)
        wait_until(lambda: [turns_of(pid) for pid in beside] == [ordinary, ordinary])
        here = os.getpriority(os.PRIO_PROCESS, os.getpid())
        assert os.getpriority(os.PRIO_PROCESS, broker.pid) == here
        wait_until(lambda: [os.getpriority(os.PRIO_PROCESS, pid) for pid in beside] == [here + 3, here + 3])


def test_a_killed_gateway_comes_back_and_no_client_is_refused():
    with LocalBroker(gateway=True) as broker:
        assert httpx.get(f"{broker.http_url}/ready", timeout=WAIT_S).status_code == 200
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        before = companion_of(broker)
        before.kill()
        before_pid = before.pid
        # Clients of the moment wait in the socket's queue: the port is never closed.
        assert httpx.get(f"{broker.http_url}/ready", timeout=WAIT_S).status_code == 200
        assert companion_of(broker).pid != before_pid
        producer.produce("t", b"x")
        assert producer.flush(WAIT_S) == 0


@contextmanager
def working(*loops: Callable[[], None]) -> Iterator[list["Future[None]"]]:
    """Each again and again, on a thread of its own, until the block is left. One that is done has failed."""
    stop = threading.Event()

    def repeat(loop: Callable[[], None]) -> None:
        while not stop.is_set():
            loop()

    with ThreadPoolExecutor(len(loops)) as pool:
        tasks = [pool.submit(repeat, loop) for loop in loops]
        try:
            yield tasks
        finally:
            stop.set()


def test_the_broker_does_not_notice_that_gateways_are_killed_under_load():
    """Its other clients are served over the connections that they had, and get every answer that they wait for."""
    with LocalBroker(gateway=True) as broker, httpx.Client(base_url=broker.http_url, timeout=WAIT_S) as rest:
        rest.post("/topics", json={"name": "rest", "partitions": 1}).raise_for_status()
        answered: list[str] = []
        numbers, offsets, told = itertools.count(), [], []
        settings = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True}
        producer = Producer({**settings, "error_cb": told.append, "log_level": 0})

        def post() -> None:
            value = f"v{next(numbers)}"
            with suppress(httpx.TransportError):  # its gateway has just been killed
                if rest.post("/topics/rest/messages", json={"value": value}).status_code == 200:
                    answered.append(value)

        def produce() -> None:
            outcome: list[tuple[object, int]] = []
            producer.produce(
                "kafka", b"x", partition=0, on_delivery=lambda error, one: outcome.append((error, one.offset()))
            )
            assert producer.flush(WAIT_S) == 0
            offsets.extend(outcome)

        def work_goes_on(loops: list["Future[None]"]) -> None:
            posts, records = len(answered), len(offsets)
            wait_until(lambda: (len(answered) - posts > 20 < len(offsets) - records) or any(map(Future.done, loops)))
            assert not any(map(Future.done, loops)), [one.exception() for one in loops if one.done()]

        with RawConnection(broker.port) as kafka, working(post, post, post, produce) as loops:
            for module in (REST, GRPC, REST):
                companion_of(broker, module).kill()
                work_goes_on(loops)
                assert kafka.is_served(), "on the same connection"
            assert companion_of(broker, GRPC).is_running()
        assert offsets == [(None, offset) for offset in range(len(offsets))]
        assert told == [], "no connection of this client was lost"
        lines = rest.get("/api/v1/topics/rest/messages").text.splitlines()
        assert set(answered) <= {json.loads(line)["value"] for line in lines}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_gateways_end_with_the_broker(number):
    with LocalBroker(gateway=True) as broker:
        httpx.get(f"{broker.http_url}/health", timeout=WAIT_S)
        gateways = [companion_of(broker, module) for module in (REST, GRPC)]
        if number == signal.SIGKILL:
            broker.kill()
        else:
            broker.stop()
        wait_until(lambda: all(is_gone(one) for one in gateways))


@pytest.mark.parametrize("path", ["/api/v1/topics/big/messages", "/topics/big/partitions/0/messages"])
def test_download_over_a_stop_of_rest_is_whole_or_cut(path: str) -> None:
    """An end of the response is the end of the topic; the client of a REST process that stops sees an error."""
    count, value = 400, random.Random(1).randbytes(50_000).hex()  # more than one fetch and the connection hold
    with LocalBroker(gateway=True) as broker:
        httpx.post(f"{broker.http_url}/topics", json={"name": "big", "partitions": 1}, timeout=WAIT_S)
        body = {"messages": [{"value": value}] * (count // 4)}
        for _ in range(4):
            httpx.post(f"{broker.http_url}/topics/big/messages", json=body, timeout=WAIT_S).raise_for_status()
        lines, accept = 0, {"accept": "application/x-ndjson"}
        with (
            suppress(httpx.RemoteProtocolError),
            httpx.stream("GET", broker.http_url + path, headers=accept, timeout=WAIT_S) as answer,
        ):
            assert answer.status_code == 200
            pieces = answer.iter_raw()
            lines += next(pieces).count(b"\n")
            companion_of(broker).terminate()
            lines += sum(piece.count(b"\n") for piece in pieces)
            assert lines == count


def test_rest_is_there_again_after_a_restart_at_the_same_address():
    with LocalBroker(gateway=True, memory=False) as broker:
        url = broker.http_url
        httpx.post(f"{url}/topics", json={"name": "kept"}, timeout=WAIT_S).raise_for_status()
        httpx.post(f"{url}/topics/kept/messages", json={"value": "v"}, timeout=WAIT_S).raise_for_status()
        broker.kill()
        broker.restart()
        assert broker.http_url == url
        sums = [
            len(httpx.get(f"{url}/topics/kept/partitions/{number}/messages", timeout=WAIT_S).json()["messages"])
            for number in range(4)
        ]
        assert sum(sums) == 1


def test_a_taken_port_is_told_with_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [*START, "--http", f"127.0.0.1:{port}", "--grpc", "127.0.0.1:0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert f"127.0.0.1:{port} is taken by another program; choose another with --http" in done.stderr
    assert "--no-gateway" in done.stderr


def test_without_a_gateway_there_is_no_second_process():
    with LocalBroker() as broker:
        assert psutil.Process(broker.pid).children() == []
        with pytest.raises(RuntimeError, match="gateway=True"):
            _ = broker.http_url


def test_the_gateway_alone_serves_in_front_of_a_broker_and_outlives_it(tmp_path: Path):
    with LocalBroker(memory=False) as broker, gateway_alone(broker.bootstrap, tmp_path) as url:
        assert "for this host only" in (tmp_path / "gateway.log").read_text()
        assert httpx.get(f"{url}/ready", timeout=WAIT_S).status_code == 200
        broker.kill()
        answer = httpx.get(f"{url}/ready", timeout=WAIT_S)
        assert (answer.status_code, answer.json()["retriable"]) == (503, True)
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        broker.restart()
        wait_until(lambda: httpx.get(f"{url}/ready", timeout=WAIT_S).status_code == 200)
