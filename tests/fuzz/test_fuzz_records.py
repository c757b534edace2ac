"""A short, seeded run of each fuzz target on every test run; longer runs are made by hand."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.records.batch import HEADER_BYTES
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from tests.fuzz.bounded_run import run_fuzzer

FUZZER = Path(__file__).with_name("fuzz_batch.py")
RUNS = 20_000
INPUT_BYTES_MAX = 2_048
# An input of 2 KiB may decompress to 1 MiB, and its records be held eight ways: far below this, unless
# something allocates by what the bytes claim.
RESIDENT_MIB_MAX = 512

pytestmark = pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no build for this Python")


def seeds() -> Iterator[bytes]:
    records = [
        NewRecord(1_000, b"key", b"value", (("name", b"x"), ("null", None))),
        NewRecord(1_001, None, b"no key" * 20),
        NewRecord(900, b"gone", None),
    ]
    for codec in Codec:
        yield build_batch(records, codec=codec)
    yield build_marker_batch(EndMarker(ControlType.COMMIT, 3), producer_id=1, producer_epoch=0, timestamp=5)


@pytest.mark.parametrize("target", ["produce", "batch", "records", "compressed"])
def test_only_promised_errors_come_out_of(target: str, tmp_path: Path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        content = bytes((number,)) + seed[HEADER_BYTES:] if target == "compressed" else seed
        (corpus / str(number)).write_bytes(content)
    arguments = [
        target,
        str(corpus),
        f"-runs={RUNS}",
        "-seed=1",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={RESIDENT_MIB_MAX}",
        "-timeout=10",
        "-max_total_time=60",
        f"-artifact_prefix={tmp_path}/",
    ]
    run_fuzzer(FUZZER, arguments)
