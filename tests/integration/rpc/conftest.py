"""A broker in memory with gRPC beside it, one for all tests of a file; each test has topics and groups of its own."""

import itertools
from collections.abc import Callable, Iterator

import grpc
import pytest

from headrace.rpc import headrace_pb2 as pb
from headrace.testing import LocalBroker
from tests.integration.rpc.kit import PROMPT, Rpc, connected

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True, settings=PROMPT) as broker:
        yield broker


@pytest.fixture(scope="module")
def rpc(broker: LocalBroker) -> Iterator[Rpc]:
    with connected(broker.grpc_address) as rpc:
        yield rpc


@pytest.fixture
def make_topic(rpc: Rpc) -> Callable[..., str]:
    def make(partitions: int = 1, **configs: str) -> str:
        name = f"t-{next(_numbers)}"
        named = {key.replace("_", "."): value for key, value in configs.items()}
        rpc.admin.CreateTopic(pb.CreateTopicRequest(name=name, partitions=partitions, configs=named))
        return name

    return make


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic()


@pytest.fixture
def group() -> str:
    return f"g-{next(_numbers)}"


@pytest.fixture
def channel(broker: LocalBroker) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(broker.grpc_address) as channel:
        yield channel
