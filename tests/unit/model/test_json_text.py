"""Parts of a JSON document as they were written: whatever the spelling, the part is the slice of the document."""

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.json_text import JsonText, TooDeep, parts

spaces = st.text(" \t\r\n", max_size=2)
escapes = st.sampled_from(["\\u00e9", "\\u00E9", "\\/", '\\"', "\\\\", "\\n", "\\ud83d\\ude00"])
plain = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\')
strings = st.lists(escapes | plain, max_size=6).map(lambda made: '"' + "".join(made) + '"')
digits = st.integers(0, 10**40).map(str)
numbers = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "-"]),
        digits,
        st.just("") | digits.map(".{}".format),
        st.sampled_from(["", "e1", "E+05", "e-300"]),
    ),
)


class Written(NamedTuple):
    """A document, and the texts of its parts."""

    text: str
    parts: list[tuple[str, str]]


def arrays(inner):
    return st.builds(
        lambda rows: "[" + ",".join(rows) + "]",
        st.lists(st.builds("{}{}{}".format, spaces, inner, spaces), max_size=4),
    )


def members(values):
    return st.lists(st.tuples(spaces, strings, spaces, spaces, values, spaces), max_size=5)


def as_object(rows):
    return "{" + ",".join(f"{a}{name}{b}:{c}{value}{d}" for a, name, b, c, value, d in rows) + "}"


scalars = st.sampled_from(["null", "true", "false"]) | strings | numbers
documents = st.recursive(scalars, lambda inner: arrays(inner) | members(inner).map(as_object), max_leaves=12)
objects = members(documents).map(
    lambda rows: Written(as_object(rows), [(json.loads(row[1]), row[4]) for row in rows]),
)


@given(objects, spaces, spaces)
def test_members_of_an_object_are_slices_of_its_text(written, before, behind):
    document = before + written.text + behind
    json.loads(document)  # the strategy writes valid JSON
    assert parts(document) == dict(written.parts)


@given(st.lists(st.tuples(spaces, documents, spaces), max_size=6))
def test_elements_of_an_array_are_slices_of_its_text(rows):
    text = "[" + ",".join("".join(row) for row in rows) + "]"
    assert parts(text) == {number: row[1] for number, row in enumerate(rows)}


def test_parts_of_parts_keep_every_byte():
    text = JsonText(lambda: '{"messages": [{"value": 1.10}, {"value": {"é": [-0,  1E2], "a": 1, "a": 2}}]}')
    assert text["messages"][0]["value"].encoded() == b"1.10"
    assert text["messages"][1]["value"].encoded() == '{"é": [-0,  1E2], "a": 1, "a": 2}'.encode()


def test_nothing_is_scanned_before_a_text_is_asked_for():
    def get() -> str:
        raise AssertionError("not asked for")

    assert JsonText(get)["value"][0]


def test_a_value_beyond_the_recursion_limit_is_refused():
    with pytest.raises(TooDeep):
        parts('{"value": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}")
