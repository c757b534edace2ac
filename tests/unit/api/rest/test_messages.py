"""Messages between JSON and bytes: what a client wrote is stored, and what is stored is shown."""

import orjson
import pytest
from hypothesis import given

from headrace.api.rest.errors import Problem
from headrace.api.rest.messages import CompactText, Outgoing, outgoing, shown, text_of
from headrace.model.json_text import JsonText
from headrace.records.record import Record
from tests.unit.model.test_json_text import documents

SPELLINGS = [
    "123456789012345678901234567890",
    "1.10",
    "-0",
    "1E2",
    '{"n": "\\u00e9", "n": 2,  "m": [1.0]}',
    '["\\/"]',
    "[\n1\n]",
]


def sent(body: str) -> Outgoing:
    given = orjson.loads(body)
    return outgoing(given, text_of(body.encode(), given))


def is_text_or_null(value: str) -> bool:
    return value.startswith('"') or value == "null"


@given(documents)
def test_any_json_value_is_stored_as_its_slice_of_the_body(value):
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return  # a number beyond a double: the request is refused
    expected = orjson.loads(value) if is_text_or_null(value) else value
    expected = None if expected is None else expected.encode()
    for body in (
        f'{{"value": {value} , "key":{value}, "headers": {{"a":{value}}}}}',
        f'{{"value":{value},"key":{value},"headers":{{"a":{value}}}}}',
    ):
        assert sent(body) == Outgoing(expected, expected, headers=[("a", expected)])


def test_a_compact_message_is_stored_without_a_scan():
    given = {"value": {"n": [1, 2.5]}, "headers": {"a": True}}
    text = text_of(orjson.dumps(given), given)
    assert isinstance(text, CompactText)
    assert outgoing(given, text) == Outgoing(b'{"n":[1,2.5]}', None, headers=[("a", b"true")])


@pytest.mark.parametrize("value", SPELLINGS)
def test_header_values_in_a_list_are_stored_as_written(value):
    body = f'{{"value": 1, "headers": [{{"name": "a", "value": {value}}}, {{"name": "a", "value": "t"}}]}}'
    assert sent(body).headers == [("a", value.encode()), ("a", b"t")]


def test_of_repeated_fields_the_last_is_stored():
    assert sent('{"value": 1.0, "v\\u0061lue": 2.0}').value == b"2.0"


def test_a_value_of_300_levels_is_stored():
    deep = "[" * 300 + "]" * 300
    assert sent(f'{{"value":{deep}}}').value == deep.encode()


def test_a_value_nested_too_deep_is_a_problem():
    deep = "[" * 1_000_000 + "]" * 1_000_000
    with pytest.raises(Problem, match="nested too deep") as refused:
        outgoing({"value": [[]]}, JsonText(lambda: f'{{"value": {deep}}}'))
    assert refused.value.status == 422


@pytest.mark.parametrize("value", SPELLINGS)
def test_json_is_shown_as_stored_on_one_line(value):
    record = Record(0, 1, value.encode(), value.encode(), ())
    line = orjson.dumps(shown(record, "json"))
    one_line = value.replace("\n", " ").encode()
    assert line == b'{"offset":0,"timestamp":1,"key":%b,"value":%b}' % (one_line, one_line)


def test_bytes_that_are_no_json_are_shown_as_text():
    record = Record(0, 1, b"\xff", b"1e400 {", ())
    assert shown(record, "json") == {"offset": 0, "timestamp": 1, "key_base64": "/w==", "value": "1e400 {"}
