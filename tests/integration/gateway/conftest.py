"""A broker in memory with its gateway, one for all tests of a file; each test has topics of its own."""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headrace.testing import LocalBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def rest(broker: LocalBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.http_url, timeout=30) as client:
        yield client


@pytest.fixture
def topic(rest: httpx.Client) -> str:
    return make_topic(rest)


def make_topic(rest: httpx.Client, partitions: int = 1, **configs: str) -> str:
    name = f"t-{next(_numbers)}"
    made = rest.post("/topics", json={"name": name, "partitions": partitions, "configs": configs})
    assert made.status_code == 201, made.text
    return name


@pytest.fixture
def produce(rest: httpx.Client, topic: str) -> Callable[..., httpx.Response]:
    def produce_one(**message: object) -> httpx.Response:
        return rest.post(f"/topics/{topic}/messages", json=message)

    return produce_one


@contextmanager
def gateway_alone(broker: LocalBroker, folder: Path) -> Iterator[str]:
    """`headrace gateway` in front of the broker, which it outlives: its address."""
    command = [sys.executable, "-m", "headrace.cli.main", "gateway", "--http", "127.0.0.1:0"]
    command += ["--grpc", "127.0.0.1:0"]
    said = folder / "gateway.log"
    with said.open("w") as log:
        process = subprocess.Popen([*command, "--bootstrap", broker.bootstrap], stderr=log)
    try:
        deadline = time.monotonic() + 60
        while "REST on http://" not in said.read_text():
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        yield said.read_text().split("REST on ")[1].split(",")[0]
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0, said.read_text()
