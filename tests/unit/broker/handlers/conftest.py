from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.handlers.handler_kit import HandlerKit


@pytest.fixture
async def kit() -> AsyncIterator[HandlerKit]:
    started = await HandlerKit().start()
    yield started
    await started.close()
    await started.partitions.close()
    await started.controller.stop()
