"""What the tests of bad input share: a broker with small limits, plain batches, and how to look at its memory."""

import psutil

from headrace.records.builder import NewRecord, build_batch
from headrace.testing import LocalBroker
from tests.integration.raw import RawConnection

MIB = 1024 * 1024
FRAME_BYTES_MAX = 2 * MIB

NONE, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_REQUIRED_ACKS = 0, 2, 10, 21
UNSUPPORTED_VERSION, UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD = 35, 43, 87


def resident_bytes(broker: LocalBroker) -> int:
    memory: int = psutil.Process(broker.pid).memory_info().rss
    return memory


def batch(*values: bytes, codec: int = 0, control: bool = False) -> bytes:
    records = [NewRecord(1_700_000_000_000, b"key", value) for value in values]
    return build_batch(records, codec=codec, control=control)


def closes(broker: LocalBroker, data: bytes) -> bool:
    """Whether the answer to these bytes is the end of the connection."""
    with RawConnection(broker.port) as connection:
        connection.send(data)
        return connection.is_closed_by_peer()
