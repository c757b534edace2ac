"""A broker of the test's own in memory, and a client of it."""

from collections.abc import AsyncIterator

import pytest

from headrace.broker.server import Broker
from tests.integration.rules.kit import Client, running


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running() as started:
        yield started


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with Client.of(broker) as connected:
        yield connected
