"""A short, seeded run of accidents to a partition's files on every test run; longer runs are made by hand."""

from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.bounded_run import run_fuzzer

FUZZER = Path(__file__).with_name("fuzz_recovery.py")
RUNS = 3_000
INPUT_BYTES_MAX = 256
RESIDENT_MIB_MAX = 256

pytestmark = pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no build for this Python")


def test_a_folder_opens_or_says_why_not_and_tells_no_lies(tmp_path: Path) -> None:
    corpus, chance = tmp_path / "corpus", Random(1)
    corpus.mkdir()
    for number in range(100):
        (corpus / str(number)).write_bytes(chance.randbytes(chance.randrange(20, 120)))
    arguments = [
        "folder",
        str(corpus),
        f"-runs={RUNS}",
        "-seed=1",
        "-len_control=0",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={RESIDENT_MIB_MAX}",
        "-timeout=20",
        "-max_total_time=20",
        f"-artifact_prefix={tmp_path}/",
    ]
    run_fuzzer(FUZZER, arguments)
