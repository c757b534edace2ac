"""A short, seeded run of the message fuzzer on every test run; longer runs are made by hand."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import message_class
from tests.fuzz.bounded_run import run_fuzzer
from tests.unit.broker.handlers.handler_kit import build
from tests.unit.broker.handlers.test_access import REQUESTS
from tests.unit.protocol.kio_messages import compact_array, kio_bytes

FUZZER = Path(__file__).with_name("fuzz_messages.py")
APIS = sorted(set(SERVED) - {ApiKey.PRODUCE, ApiKey.FETCH})
RUNS = {"requests": 60_000, "memory": 10_000}
INPUT_BYTES_MAX = 4_096
RESIDENT_MIB_MAX = 256  # the interpreter, all schemas and their compiled readers come to 60

pytestmark = pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no build for this Python")


def seeds() -> Iterator[bytes]:
    """A request for every API in its newest version, and an announced array without elements in every version."""
    for number, api in enumerate(APIS):
        versions = SERVED[api]
        newest = versions.highest - versions.lowest
        if api in REQUESTS:
            request = build(message_class(api, versions.highest, "request"), REQUESTS[api])
            yield bytes((number, newest)) + kio_bytes(request)
        for version in range(newest + 1):
            yield bytes((number, version)) + compact_array(2**27) + bytes(20)


@pytest.mark.parametrize("target", ["requests", "memory"])
def test_only_protocol_errors_come_out_of(target: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / str(number)).write_bytes(seed)
    arguments = [
        target,
        str(corpus),
        f"-runs={RUNS[target]}",
        "-seed=1",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={RESIDENT_MIB_MAX}",
        "-timeout=10",
        "-max_total_time=60",
        f"-artifact_prefix={tmp_path}/",
    ]
    run_fuzzer(FUZZER, arguments)
