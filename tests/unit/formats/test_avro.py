"""Avro schemas as columns, what their values become, and schemas that no column can be made of."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from headrace.formats.avro_reader import reader_of, resolver
from headrace.formats.avro_schema import AvroSchema, columns
from headrace.formats.row_decoder import Decoded, RowDecoder
from headrace.model.errors import InvalidConfig

MANY_DIGITS = Decimal("123456789012345678901234567890123456.78")
ID = UUID("12345678-1234-5678-1234-567812345678")
AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def record(*types: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{at}", "type": one} for at, one in enumerate(types)]}


def encoded(tree: Any, *values: Any) -> bytes:
    out = BytesIO()
    row = {f"f{at}": value for at, value in enumerate(values)}
    fastavro.schemaless_writer(out, fastavro.parse_schema(tree), row)
    return out.getvalue()


def decode(tree: Any, *values: bytes) -> Decoded:
    schema = AvroSchema(tree)
    return RowDecoder(reader_of(schema), columns(schema)).decode(values)


@pytest.mark.parametrize(
    ("type_", "value", "wanted"),
    [
        ({"type": "string", "logicalType": "uuid"}, ID, str(ID)),
        ({"type": "fixed", "size": 16, "name": "U", "logicalType": "uuid"}, ID.bytes, str(ID)),
        ({"type": "int", "logicalType": "time-millis"}, 3_600_000, 3_600_000),
        ({"type": "long", "logicalType": "time-micros"}, 3_600_000_000, 3_600_000_000),
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 2), date(2026, 1, 2)),
        ({"type": "long", "logicalType": "timestamp-millis"}, AT, AT),
        ({"type": "long", "logicalType": "timestamp-micros"}, AT, AT),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1_767_323_045_678_000_000, AT),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, AT.replace(tzinfo=None), AT.replace(tzinfo=None)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("-99.99"), Decimal("-99.99")),
        ({"type": "fixed", "name": "D", "size": 3, "logicalType": "decimal", "precision": 4}, Decimal(7), Decimal(7)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}, MANY_DIGITS, MANY_DIGITS),
        ({"type": "string", "logicalType": "date"}, "x", "x"),
        (["null", "int", "string"], 5, {"member0": 5, "member1": None}),
        (["string", "int", "null"], None, None),
        (["int", "long"], 5, 5),
    ],
)
def test_logical_types_and_unions_become_values(type_: Any, value: Any, wanted: Any) -> None:
    tree = record(type_)
    decoded = decode(tree, encoded(tree, value))
    assert (decoded.rows.field("f0").to_pylist(), decoded.errors.to_pylist()) == ([wanted], [None])


@pytest.mark.parametrize(
    ("type_", "poison", "why"),
    [
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x08\x7f\xff\xff\xff",
            "does not fit",
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe" + b"\xff" * 8 + b"\x01",
            "is no timestamp",
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xfe" + b"\xff" * 8 + b"\x01", "years 1 to 9999"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "is outside of the years 1 to 9999"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, b"\x02", "excess_digits: round"),
        ("int", b"\xfe\xff\xff\xff\xff\x01", "is no int32"),
        ("boolean", b"\x02", "is no bool"),
        ("string", b"\x02\xff", "UnicodeDecodeError"),
        (["null", "long"], b"\x01\x0e", "ends too early"),
        (["null", "long"], b"\x04\x0e", "ends too early"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01", "has no symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04", "has no symbol"),
        ("int", b"\x02\x02", "1 bytes are left over"),
    ],
)
def test_bytes_that_no_writer_writes_are_errors(type_: Any, poison: bytes, why: str) -> None:
    tree = record(type_)
    good = decode(tree, poison, *[b""] * 3)
    assert good.rows.null_count == 4
    assert why in good.errors[0].as_py()


def test_error_text_is_the_same_for_the_same_bytes() -> None:
    first, second = decode(record("double"), b"\x01", b"\x01").errors.to_pylist()
    assert first == second


def test_named_types_are_reused_wherever_they_were_defined() -> None:
    line = {**record("int", name="shop.Line"), "namespace": "shop"}
    tree = {**record({"type": "array", "items": line}, "shop.Line", ["null", "shop.Line"]), "namespace": "other"}
    value = encoded(tree, [{"f0": 1}], {"f0": 2}, {"f0": 3})
    (row,) = decode(tree, value).rows.to_pylist()
    assert row == {"f0": [{"f0": 1}], "f1": {"f0": 2}, "f2": {"f0": 3}}


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        (record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "items may take no bytes"),
        (record({"type": "array", "items": record(name="Empty")}), "items may take no bytes"),
        (record(["null", "R"]), "contains itself"),
        (record("lung"), "'lung' is unknown"),
        (record("null"), "has no column"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 39}), "at most 38"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "one of a record"),
        ({"type": "record", "name": "R"}, "no fields"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "not valid"),
    ],
)
def test_schema_without_columns_is_refused(tree: Any, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        decode(tree)


def resolved(writer: Any, reader: Any) -> Callable[[bytes], Any]:
    schema = AvroSchema(reader)
    decoder = RowDecoder(resolver(AvroSchema(writer), schema), columns(schema))
    return lambda value: decoder.decode([value]).rows.field("f0").to_pylist()[0]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "wanted"),
    [
        ("int", "long", 5, 5),
        ("int", "double", 5, 5.0),
        ("long", {"type": "long", "logicalType": "timestamp-millis"}, 1_767_323_045_678, AT),
        (["string", "int"], ["null", "int", "string"], "x", {"member0": None, "member1": "x"}),
        ("boolean", ["null", "boolean"], True, True),
    ],
)
def test_value_of_another_schema_is_resolved(writer: Any, reader: Any, value: Any, wanted: Any) -> None:
    tree = record(writer)
    assert resolved(tree, record(reader))(encoded(tree, value)) == wanted


def test_defaults_of_the_reader_fill_missing_fields() -> None:
    defaults = {"boolean": True, "bytes": "\u00ff", "int": 7}
    fields = [{"name": name, "type": name, "default": one} for name, one in defaults.items()]
    fields.append({"name": "union", "type": ["int", "string"], "default": 3})
    reader = AvroSchema({"type": "record", "name": "R", "fields": [{"name": "f0", "type": "int"}, *fields]})
    decoder = RowDecoder(resolver(AvroSchema(record("int")), reader), columns(reader))
    (row,) = decoder.decode([b"\x02"]).rows.to_pylist()
    assert row == {"f0": 1, "boolean": True, "bytes": b"\xff", "int": 7, "union": {"member0": 3, "member1": None}}


def test_other_unit_of_the_writer_is_refused() -> None:
    millis, micros = (record({"type": "long", "logicalType": f"timestamp-{unit}"}) for unit in ("millis", "micros"))
    with pytest.raises(InvalidConfig, match="f0 is timestamp-millis there, and timestamp-micros here"):
        resolver(AvroSchema(millis), AvroSchema(micros))


def test_columns_that_reuse_records_are_bounded() -> None:
    tree: Any = record("int", name="N0")
    for depth in range(1, 20):
        tree = record(tree, f"N{depth - 1}", name=f"N{depth}")
    with pytest.raises(InvalidConfig, match="more than 10000 columns"):
        columns(AvroSchema(tree))


def test_an_empty_batch_has_the_columns() -> None:
    decoded = decode(record("int"))
    assert (decoded.rows.type, len(decoded.rows)) == (pa.struct([("f0", pa.int32())]), 0)
