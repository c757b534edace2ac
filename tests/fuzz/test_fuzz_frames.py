"""A short, seeded run of whole frames through a broker on every test run; longer runs are made by hand."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from struct import pack

import pytest

from headrace.client.sync.transport import encode_request
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import message_class
from tests.fuzz.bounded_run import run_fuzzer
from tests.unit.broker.handlers.handler_kit import build
from tests.unit.broker.handlers.test_access import REQUESTS

FUZZER = Path(__file__).with_name("fuzz_frames.py")
RUNS = 3_000
INPUT_BYTES_MAX = 2_048
RESIDENT_MIB_MAX = 512  # a broker with all its handlers comes to 120

pytestmark = pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no build for this Python")


def seeds() -> Iterator[bytes]:
    """A request of every API in its newest version, after one that makes the coordinators' topics."""
    find = message_class(ApiKey.FIND_COORDINATOR, 6, "request")
    first = [encode_request(build(find, {"key_type": kind, "coordinator_keys": ("g",)}), 1) for kind in (0, 1)]
    for api in sorted(set(REQUESTS) & set(SERVED) - {ApiKey.PRODUCE, ApiKey.FETCH}):
        request = build(message_class(api, SERVED[api].highest, "request"), REQUESTS[api])
        frames = [*first, encode_request(request, 2)]
        yield b"".join(pack(">H", len(frame) - 4) + frame[4:] for frame in frames)


def test_only_what_is_foreseen_comes_out_of_a_broker(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / str(number)).write_bytes(seed)
    arguments = [
        "frames",
        str(corpus),
        f"-runs={RUNS}",
        "-seed=1",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={RESIDENT_MIB_MAX}",
        "-timeout=20",
        "-max_total_time=20",
        f"-artifact_prefix={tmp_path}/",
    ]
    run_fuzzer(FUZZER, arguments)
