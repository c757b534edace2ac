"""A broker in memory with its gateway, one for all tests of a file; each test has topics of its own."""

import itertools
from collections.abc import Callable, Iterator

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
