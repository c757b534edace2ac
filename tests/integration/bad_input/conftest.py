"""Bytes that no client would send: each has a stated answer, and the next client is served.

docs/compatibility.md has the table of answers.
"""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from headrace.testing import LocalBroker
from tests.integration.bad_input.kit import FRAME_BYTES_MAX, MIB, NONE, batch, resident_bytes
from tests.integration.raw import RawConnection


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"socket.request.max.bytes": str(FRAME_BYTES_MAX), "num.partitions": "1"}) as one:
        yield one


@pytest.fixture
def topic(broker) -> str:
    name = f"t-{uuid4().hex}"
    with RawConnection(broker.port) as connection:
        assert connection.create_topic(name) == NONE
    return name


@pytest.fixture(autouse=True)
def _the_next_client_is_served(broker) -> Iterator[None]:
    """Whatever a test did: the broker still takes and gives records, and holds no more memory than before."""
    before = resident_bytes(broker)
    yield
    name = f"after-{uuid4().hex}"
    with RawConnection(broker.port) as connection:
        assert connection.create_topic(name) == NONE
        assert connection.produce_error(name, batch(b"still here")) == (NONE, 0)
        assert b"still here" in connection.fetched(name)
    assert resident_bytes(broker) - before < 64 * MIB
