"""What an archive says in its commits, and how values become its columns."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.archive.decode import DECODE_ERROR, ValueSchema, archive_schema, with_decoded
from headrace.archive.table import Coverage
from headrace.formats.ddl import columns_of
from headrace.model.errors import InvalidConfig

NUMBERS = st.dictionaries(st.integers(0, 1000), st.integers(0, 2**62))


def decoded(columns: str, *values: bytes | None) -> list[dict[str, object]]:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    return with_decoded(batch, ValueSchema("json", columns)).drop_columns(["value"]).to_pylist()


@settings(deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS)
def test_coverage_is_read_as_it_was_written(starts: dict[int, int], ends: dict[int, int], lost: dict[int, int]) -> None:
    coverage = Coverage(starts, ends, lost)
    assert Coverage.from_notes(coverage.to_notes()) == coverage


def test_notes_that_no_archive_wrote_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="was not written by an archive"):
        Coverage.from_notes({"until": "{}"})


def test_a_first_commit_covers_from_where_the_log_begins() -> None:
    assert Coverage().advanced({0: 5, 1: 0}, {0: 9, 1: 0}) == Coverage({0: 5, 1: 0}, {0: 9, 1: 0}, {})


def test_a_partition_that_is_added_later_is_covered_from_its_beginning() -> None:
    coverage = Coverage({0: 0}, {0: 9}).advanced({0: 0, 1: 0}, {0: 12, 1: 3})
    assert (coverage.starts, coverage.ends) == ({0: 0, 1: 0}, {0: 12, 1: 3})


def test_offsets_that_were_gone_before_they_were_read_are_counted() -> None:
    coverage = Coverage({0: 0}, {0: 10}, {0: 1})
    assert coverage.position(0, log_start=14) == 14
    assert coverage.advanced({0: 14}, {0: 20}).lost == {0: 5}


def test_columns_of_every_type() -> None:
    schema = columns_of("a bigint, `b c` string, d decimal(10, 2), e array<struct<f: int, g: array<double>>>, h date")
    assert schema.names == ["a", "b c", "d", "e", "h"]
    assert schema.field("e").type.value_type.field("g").type.value_type == pa.float64()


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("id", "is no column"),
        ("id biggint", "is no type"),
        ("id int, ID string", "twice"),
        ("id decimal(50, 2)", "is no type"),
        ("offset bigint", "every archive has a column offset already"),
        ("", "is no column"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused_with_a_reason(columns: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        ValueSchema("json", columns).schema()


def test_values_become_columns_of_their_types() -> None:
    columns = "id bigint, at timestamp, day date, price decimal(10,2), tags array<string>, ok boolean, x double"
    value = b'{"id":7,"at":"2026-01-02T03:04:05Z","day":"2026-01-02","price":"9.99","tags":["a"],"ok":true,"x":1}'
    (row,) = decoded(columns, value)
    assert row == {
        "id": 7,
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("9.99"),
        "tags": ["a"],
        "ok": True,
        "x": 1.0,
        DECODE_ERROR: None,
    }


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (b"poison", "not JSON"),
        (b"[1]", "a JSON list, not an object"),
        (b'{"id":"seven"}', "id: 'seven' is no int64"),
        (b'{"id":true}', "id: True is no int64"),
        (b'{"id":99999999999999999999}', "is no int64"),
        (b'{"id":1,"at":"yesterday"}', "at: 'yesterday' is no timestamp"),
        (
            b'{"at":"2026-01-02T03:04:05.1234567Z"}',
            "at: '2026-01-02T03:04:05.1234567Z' has digits behind the microsecond",
        ),
        (b'{"at":1767323045123}', "at: 1767323045123 is a number, not ISO 8601 text; set its unit, as in timestamps"),
        (b'{"at":"0000-01-01T00:00:00Z"}', "at: '0000-01-01T00:00:00Z' is outside of the years 1 to 9999"),
        (b"\xff", "not JSON"),
    ],
)
def test_a_value_that_does_not_fit_says_why_and_spoils_no_neighbour(value: bytes, complaint: str) -> None:
    rows = decoded("id bigint, at timestamp", b'{"id":1}', value, b'{"id":3,"at":"2026-01-02T03:04:05"}')
    assert [row["id"] for row in rows] == [1, None, 3]
    assert [row[DECODE_ERROR] is None for row in rows] == [True, False, True]
    assert complaint in str(rows[1][DECODE_ERROR])


def test_avro_values_become_columns_too() -> None:
    schema = {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
    stream = BytesIO()
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), {"id": 7, "at": at, "note": None})
    batch = pa.RecordBatch.from_pydict({"value": pa.array([stream.getvalue(), b"poison"], pa.binary())})
    good, poison = with_decoded(batch, ValueSchema("avro", json.dumps(schema))).to_pylist()
    assert (good["id"], good["at"], good["note"], good[DECODE_ERROR]) == (7, at, None, None)
    assert (poison["id"], poison["at"]) == (None, None)
    assert "not Avro of this schema" in poison[DECODE_ERROR]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("json;timestamp=seconds:id bigint", "did you mean timestamps"),
        ("json;timestamps=ms:id bigint", "timestamps is one of"),
        ("json;tombstones=error:id bigint", "an archive has no option 'tombstones'"),
        ("json;sep=x:id bigint", "format json has no option 'sep'"),
        ("avro:{", "an Avro schema is JSON, and this is not"),
        ("csv:id bigint", "does not begin with json or avro"),
    ],
)
def test_unusable_archive_schema_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        ValueSchema.parse(text)


def test_no_value_is_no_error() -> None:
    assert decoded("id bigint", None) == [{"id": None, DECODE_ERROR: None}]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=30))))
def test_any_bytes_give_a_row_of_the_promised_schema(values: list[bytes | None]) -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    decoding = ValueSchema("json", "id bigint, at timestamp, d decimal(5,1), s struct<a: int>")
    rows = with_decoded(batch, decoding)
    assert rows.num_rows == len(values)
    assert rows.schema.names[1:] == archive_schema(decoding).names[8:]


def test_timestamps_of_two_formats_in_one_batch_are_rows() -> None:
    values = b'{"at":"2026-01-02T03:04:05Z"}', b'{"at":"2026-01-02T03:04:05"}', b'{"at":"2026-01-02 04:04:05+01:00"}'
    rows = decoded("at timestamp", *values)
    assert rows == [{"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), DECODE_ERROR: None}] * 3
