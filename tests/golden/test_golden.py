"""The wire protocol, byte for byte, as it was recorded: every API that the broker serves, in every version.

What differs on purpose is recorded with `python -m tests.golden.record`, and the difference of the files is reviewed.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.comparison import differences
from tests.golden.golden_file import decoded, lines_of, path_of, read
from tests.golden.messages import errors_in, label
from tests.golden.run import NOT_SERVED, conversations
from tests.golden.scripts.all import SCRIPTS
from tests.golden.scripts.common import (
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    END_TXN,
    FETCH,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
    SYNC_GROUP,
)
from tests.golden.served import served

APIS = sorted({one.api for one in SCRIPTS})
HERE = Path(__file__).parent
DIFFERENCES_SHOWN_MAX = 10

# The versions whose requests, said again on their connection, are answered without being read in full.
FAST_FROM = {PRODUCE: 7, OFFSET_COMMIT: 2}
REPEATED = (PRODUCE, FETCH, OFFSET_COMMIT, HEARTBEAT, METADATA)
DELAYED = (PRODUCE, FETCH, LIST_OFFSETS, OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP, INIT_PRODUCER_ID, END_TXN)
PIPELINED = (PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, HEARTBEAT, END_TXN)
WITHOUT_NORMAL_CASE = {
    DESCRIBE_ACLS: "every answer is SECURITY_DISABLED",
    CREATE_ACLS: "every answer is SECURITY_DISABLED",
    DELETE_ACLS: "every answer is SECURITY_DISABLED",
}


@pytest.mark.parametrize("api", APIS, ids=label)
def test_responses_are_as_recorded(api: int) -> None:
    assert not different(api), shown(api)


@pytest.mark.parametrize("api", FAST_FROM, ids=label)
def test_responses_without_fast_paths_are_the_same(api: int) -> None:
    assert not different(api, fast_paths=False), shown(api, fast_paths=False)


@pytest.mark.parametrize("api", FAST_FROM, ids=label)
def test_repeated_requests_take_the_fast_path(api: int) -> None:
    taken: dict[int, int] = {}
    for said in conversations(api):
        taken[said.version] = taken.get(said.version, 0) + said.fast_requests
    assert {version for version, requests in taken.items() if requests} == {
        version for version in taken if version >= FAST_FROM[api]
    }


def test_every_served_api_has_a_script_and_a_golden_file() -> None:
    assert set(APIS) == set(served())
    assert {path_of(api) for api in APIS} == set((HERE / "answers").glob("*"))


@pytest.mark.parametrize("api", APIS, ids=label)
def test_every_version_has_a_normal_and_an_error_case(api: int) -> None:
    lowest, highest = served()[api]
    for version in range(lowest, highest + 1):
        outcomes = {
            outcome for steps in recorded(api, version) for lines in steps.values() for outcome in judged(lines)
        }
        expected = {"error"} if api in WITHOUT_NORMAL_CASE else {"normal", "error"}
        assert expected <= outcomes, f"{label(api)} v{version}"
        names = [name for steps in recorded(api, version) for name in steps]
        assert {"everything is denied", "a byte is missing", "a byte too many", "no client id"} <= set(names)


@pytest.mark.parametrize("api", APIS, ids=label)
def test_every_version_has_the_cases_that_its_api_calls_for(api: int) -> None:
    lowest, highest = served()[api]
    for version in range(lowest, highest + 1):
        place = f"{label(api)} v{version}"
        names = " ".join(name for steps in recorded(api, version) for name in steps)
        lines = [lines for steps in recorded(api, version) for lines in steps.values()]
        if api in REPEATED:
            assert "first" in names, place
            assert "repeated" in names, place
        if api in DELAYED:
            assert any(is_delayed(one) for one in lines), place
        if api in PIPELINED:
            assert any(sum(line.startswith("> ") for line in one) > 1 for one in lines), place
    assert f"v{highest}, {NOT_SERVED}" in read(api)


def test_golden_files_name_nothing_inside_the_product() -> None:
    for api in APIS:
        assert not re.search(r"headrace[./]\w|\.py\b|0x[0-9a-f]{8}", path_of(api).read_text()), label(api)


def test_one_module_imports_the_product() -> None:
    importing = [
        path.name for path in HERE.rglob("*.py") if re.search(r"^\s*(from|import) headrace", path.read_text(), re.M)
    ]
    assert importing == ["broker_under_test.py"]


def different(api: int, *, fast_paths: bool = True) -> list[str]:
    before = read(api)
    found = []
    headings = []
    for said in conversations(api, fast_paths=fast_paths):
        headings.append(said.heading)
        steps = {step.name: lines_of([step])[1:] for step in said.steps}
        found += differences(api, said.heading, before.get(said.heading, {}), steps)
    found += [
        f"{label(api)} {heading}: is recorded, and no script has it" for heading in before if heading not in headings
    ]
    return found


def shown(api: int, *, fast_paths: bool = True) -> str:
    found = different(api, fast_paths=fast_paths)
    more = len(found) - DIFFERENCES_SHOWN_MAX
    return "\n".join([*found[:DIFFERENCES_SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])])


def recorded(api: int, version: int) -> Iterator[dict[str, list[str]]]:
    for heading, steps in read(api).items():
        if re.fullmatch(rf"v{version}(, .*)?", heading) and NOT_SERVED not in heading:
            yield steps


def judged(lines: list[str]) -> Iterator[str]:
    requests = [bytes.fromhex(line[2:]) for line in lines if line.startswith("> ")]
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line == "x":
            yield "error"
        elif line.startswith("< ") and "SHA-256" in line:
            yield "error" if "error_code=" in after else "normal"
        elif line.startswith("< "):
            response = decoded(bytes.fromhex(line[2:]), requests)
            assert response is not None, line
            yield "error" if errors_in(response) else "normal"


def is_delayed(lines: list[str]) -> bool:
    kinds = "".join(line[0] for line in lines)
    return "~<" in kinds.replace("=", "")
