"""A fatal error of a librdkafka producer, raised by librdkafka itself, which has a function for such tests."""

import ctypes
from pathlib import Path

from confluent_kafka import Producer

from headrace.model.errors import ErrorCode


def raise_fatal_error(producer: Producer) -> None:
    """As if the broker had answered that the producer's sequence cannot be continued."""
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)  # confluent-kafka's first field
    code = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    failed: int = _librdkafka().rd_kafka_test_fatal_error(handle, code, b"the sequence is broken")
    assert failed == 0


def _librdkafka() -> ctypes.CDLL:
    """The copy that confluent-kafka has loaded into this process."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "librdkafka" in line}
    (path,) = mapped
    return ctypes.CDLL(path)
