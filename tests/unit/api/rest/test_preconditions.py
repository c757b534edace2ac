"""Which ETags a condition names, in every spelling."""

import pytest
from starlette.datastructures import Headers

from headrace.api.rest.errors import Problem
from headrace.api.rest.http import is_known

TAG = '"a1"'


def known(method: str, *lines: tuple[str, str]) -> bool | int:
    """Whether it is known, or the status of the problem."""
    headers = Headers(raw=[(name.encode(), value.encode()) for name, value in lines])
    try:
        return is_known(headers, method, TAG)
    except Problem as problem:
        return problem.status


@pytest.mark.parametrize(
    ("value", "read", "changed"),
    [
        (TAG, False, False),
        (" * ", False, False),
        (f'"x", {TAG}', False, False),
        (f'"x,y",{TAG}', False, False),
        ('"x"', 412, 412),
        (f"W/{TAG}", 412, 412),
        ("a1", 412, 412),
        ("", 412, 412),
        ('"a"1"', 412, 412),
    ],
)
def test_if_match_takes_strong_etags_and_any(value, read, changed):
    assert (known("GET", ("if-match", value)), known("PATCH", ("if-match", value))) == (read, changed)


@pytest.mark.parametrize(
    ("value", "read", "changed"),
    [
        (TAG, True, 412),
        ("*", True, 412),
        (f"W/{TAG}", True, 412),
        (f'"x" ,W/{TAG}', True, 412),
        ('"x"', False, False),
        ("a1", False, False),
        ("", False, False),
    ],
)
def test_if_none_match_takes_weak_etags_and_any(value, read, changed):
    assert (known("GET", ("if-none-match", value)), known("DELETE", ("if-none-match", value))) == (read, changed)


def test_conditions_on_several_lines_are_one_list():
    assert known("GET", ("if-match", '"x"'), ("if-match", TAG)) is False
    assert known("GET", ("if-match", '"x"'), ("if-none-match", TAG)) == 412, "If-Match comes first"
    assert known("GET") is False
