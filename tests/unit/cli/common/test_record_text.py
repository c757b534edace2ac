"""Records as lines: what is read, what is refused, and that a pipe from consume to produce loses nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.common.record_text import (
    BadLine,
    Incoming,
    Outgoing,
    as_json,
    check_template,
    parse_header,
    parse_json_record,
    parse_line,
    render,
)

RECORD = Incoming("orders", 2, 15, 1_700_000_000_000, "CreateTime", b"k", b"v\xff", [("h", b"1"), ("n", None)])


def test_a_line_is_a_value():
    assert parse_line(b"a:b", None) == Outgoing(b"a:b")


def test_a_separator_parts_key_and_value_at_its_first_place():
    assert parse_line(b"a::b::c", b"::") == Outgoing(b"b::c", b"a")
    with pytest.raises(BadLine, match="between key and value"):
        parse_line(b"abc", b"::")


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value": "v"}', Outgoing(b"v")),
        (b'{"value": null, "key": "k"}', Outgoing(None, b"k")),
        (b'{"value": {"base64": "AAE="}}', Outgoing(b"\0\1")),
        (b'{"value": {"a": [1, "x"]}}', Outgoing(b'{"a": [1, "x"]}')),
        (b'{"key": 1.10, "value": -0}', Outgoing(b"-0", b"1.10")),
        (b'{"value": "v", "headers": {"a": 1E2}}', Outgoing(b"v", None, [("a", b"1E2")])),
        (b'{"value": "v", "headers": [["a", {"n":1,"n":2}]]}', Outgoing(b"v", None, [("a", b'{"n":1,"n":2}')])),
        (b'{"value": 7, "headers": {"a": "b", "n": null}}', Outgoing(b"7", None, [("a", b"b"), ("n", None)])),
        (
            b'{"value":"", "headers": [["a","b"],["a","c"]], "partition": 3, "timestamp": 9}',
            Outgoing(b"", None, [("a", b"b"), ("a", b"c")], 3, 9),
        ),
        (b'{"topic": "x", "offset": 4, "timestamp_type": null, "value": "v"}', Outgoing(b"v")),
    ],
)
def test_json_records_are_read(line, record):
    assert parse_json_record(line) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a record"),
        (b'{"value": NaN}', "NaN is not a JSON number"),
        (b'{"value": "\\ud800"}', "lone surrogate"),
        (b'{"value": [' + b"[" * 100_000, "not JSON"),
        (b'{"key": "k"}', "not a record"),
        (b'{"value": "v", "vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"value": {"base64": "!"}}', "not valid base64"),
        (b'{"value": "v", "headers": "x"}', "headers must be"),
        (b'{"value": "v", "headers": [["a"]]}', "headers must be"),
        (b'{"value": "v", "partition": "1"}', "partition must be an integer"),
        (b'{"value": "v", "timestamp": true}', "timestamp must be an integer"),
    ],
)
def test_other_json_is_refused_with_the_reason(line, reason):
    with pytest.raises(BadLine, match=reason):
        parse_json_record(line)


def test_bytes_that_are_no_text_are_shown_as_base64():
    assert as_json(RECORD)["value"] == {"base64": "dv8="}
    assert as_json(RECORD)["headers"] == [["h", "1"], ["n", None]]


some_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


@given(some_bytes, some_bytes, st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3))
def test_what_consume_prints_produce_reads_back(key, value, headers):
    line = json.dumps(as_json(Incoming("t", 1, 2, 3, "CreateTime", key, value, headers))).encode()
    assert parse_json_record(line) == Outgoing(value, key, headers, 1, 3)


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_parse_or_be_refused(line):
    try:
        assert isinstance(parse_json_record(line), Outgoing)
    except BadLine:
        return


def test_templates_fill_in_fields_as_the_bytes_they_are():
    template = "{topic}-{partition}@{offset}\\t{key}={value} [{headers}]\\n"
    assert render(RECORD, template) == b"orders-2@15\tk=v\xff [h=1,n=null]\n"
    assert render(RECORD._replace(key=None), "{key}") == b"null"


@pytest.mark.parametrize("template", ["{valu}", "{value", "{}"])
def test_templates_with_unknown_fields_are_refused(template):
    with pytest.raises(BadLine, match="known fields: topic, partition"):
        check_template(template)


def test_headers_are_name_and_value():
    assert parse_header("a=b=c") == ("a", b"b=c")
    with pytest.raises(BadLine, match="write NAME=VALUE"):
        parse_header("a")
