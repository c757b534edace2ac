"""Atheris on every request but Produce and Fetch: only ProtocolError may come out, and memory stays bounded.

    python tests/fuzz/fuzz_messages.py TARGET [CORPUS_DIR] [-runs=N] [-seed=N] …

The first two bytes of an input choose an API and a version of it, the rest is the body. `requests` looks at what
comes out; `memory` also measures, which is slower. The other arguments go to libFuzzer.
"""

import sys
import tracemalloc
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["headrace"]):
    from headrace.model.errors import ProtocolError
    from headrace.protocol.api import SERVED, ApiKey
    from headrace.protocol.bounded_reader import MEMORY_FLOOR, MEMORY_PER_BYTE_MAX
    from headrace.protocol.codec import read_request

APIS = sorted(set(SERVED) - {ApiKey.PRODUCE, ApiKey.FETCH})


def requests(data: bytes) -> None:
    _read(data)


def memory(data: bytes) -> None:
    """What is decoded never weighs more than its budget, even at its heaviest moment."""
    _read(data)  # the first time also compiles the reader, which is kept
    tracemalloc.start()
    try:
        _read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    allowed = MEMORY_PER_BYTE_MAX * len(data) + MEMORY_FLOOR
    assert peak <= allowed, f"{len(data)} bytes became {peak}, more than {allowed}"


def _read(data: bytes) -> object:
    if len(data) < 2:
        return None
    api = APIS[data[0] % len(APIS)]
    versions = SERVED[api]
    version = versions.lowest + data[1] % (versions.highest - versions.lowest + 1)
    with suppress(ProtocolError):
        return read_request(api, version, memoryview(data)[2:])
    return None


TARGETS = {target.__name__: target for target in (requests, memory)}


def main() -> None:
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
