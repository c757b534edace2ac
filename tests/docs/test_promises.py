"""The table of promises names a test for each of them, and every test that it names is there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
ROW = re.compile(r"^\| D(?P<number>\d+) \|(?P<cells>.*)\|$", re.MULTILINE)
NAMED = re.compile(r"\]\((?P<file>[^)]+\.py)\)|`(?P<test>test_\w+)`")
ROWS = {int(row["number"]): row["cells"] for row in ROW.finditer(PAGE.read_text())}


def test_every_promise_has_a_row() -> None:
    assert list(ROWS) == list(range(1, 14))


@pytest.mark.parametrize("number", ROWS)
def test_the_tests_of_the_promise_are_there(number: int) -> None:
    """Each stands behind the link to its file."""
    source, tests = "", []
    for named in NAMED.finditer(ROWS[number]):
        if named["file"]:
            source = (PAGE.parent / named["file"]).read_text()
        else:
            tests.append(named["test"])
            assert re.search(rf"^(async )?def {named['test']}\(", source, re.MULTILINE), named["test"]
    assert tests, "a promise that nobody tests is none"
    labels = {int(label) for test in tests for label in re.findall(r"_d(\d+)(?=_)", test)}
    assert not labels or number in labels, "a test's name says which promise it shows"
