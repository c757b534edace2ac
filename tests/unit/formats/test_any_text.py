"""Any JSON and CSV value becomes a row or an error, and no record changes what another one becomes.

Schemas and values are generated. Values that fit, values of other schemas, and both with bytes changed, cut or added.
"""

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.decoding_rules import STRICT, DecodingRules, rules_of
from headrace.formats.text_decoder import text_decoder
from tests.unit.formats.any_bytes import EXAMPLES, batches, check_each_alone

NAMES = ("a", "b", "é c", "d`e")
LEAVES = st.sampled_from(
    [
        *(pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
        *(pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(5, 2), pa.decimal128(38, 0)),
    ]
)


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.lists(st.tuples(st.sampled_from(NAMES), types), min_size=1, unique_by=lambda field: field[0])
    return st.one_of(
        types.map(lambda one: pa.list_(pa.field("element", one))),
        types.map(lambda one: pa.map_(pa.string(), one)),
        structs.map(pa.struct),
    )


def schemas(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    field = st.tuples(st.sampled_from(NAMES), types)
    return st.lists(field, min_size=1, unique_by=lambda one: one[0]).map(lambda all_: [pa.field(*one) for one in all_])


TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["2026-01-02", "2026-01-02T03:04:05", "2026-01-02 03:04:05.123456789+01:00", "9999-12-31T23:59:59Z"]
    ),
    st.sampled_from(
        [
            "1",
            "-0.5",
            "1e400",
            "NaN",
            "AQI=",
            "true",
            "1.239",
            "0e99999999",
            "1e999999999",
            "-1e-999999999",
            "9" * 40,
            "\ud800",
        ]
    ),
)
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([5, 0.5, 2**63]))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)),
    max_leaves=8,
)
JSON_VALUES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4).map(lambda one: json.dumps(one).encode())
JSON_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "timestamps": st.sampled_from(["text", "seconds", "milliseconds", "microseconds"]),
        "excess_digits": st.sampled_from(["error", "round"]),
        "numbers": st.sampled_from(["plain", "quoted"]),
        "strings": st.sampled_from(["text", "json"]),
    },
)


def without_tombstone_errors(format_: str, options: dict[str, str]) -> DecodingRules:
    return rules_of(format_, {**options, "tombstones": "nulls"})


@EXAMPLES
@given(schemas(st.recursive(LEAVES, nested, max_leaves=4)), JSON_OPTIONS, batches(JSON_VALUES))
def test_any_json_becomes_a_row_or_an_error(
    fields: list[pa.Field], options: dict[str, str], values: list[bytes | None]
) -> None:
    check_each_alone(text_decoder("json", fields, without_tombstone_errors("json", options)), values)


CSV_VALUES = st.lists(st.one_of(TEXTS, st.sampled_from(['"a""b"', '"', '"x\ny"'])), max_size=4).map(
    lambda fields: ",".join(fields).encode("utf-8", "surrogatepass")
)


@EXAMPLES
@given(schemas(LEAVES), st.sampled_from(['"', "\\"]), batches(CSV_VALUES))
def test_any_csv_becomes_a_row_or_an_error(fields: list[pa.Field], escape: str, values: list[bytes | None]) -> None:
    check_each_alone(text_decoder("csv", fields, without_tombstone_errors("csv", {"escape": escape})), values)


@EXAMPLES
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(), st.floats(allow_infinity=False)), max_size=5))
def test_json_that_fits_is_read_as_it_was_written(rows: list[tuple[int, str, float]]) -> None:
    fields = [pa.field("i", pa.int64()), pa.field("s", pa.string()), pa.field("f", pa.float64())]
    texts = [s.encode("utf-8", "replace").decode() for _, s, _ in rows]
    values = [
        json.dumps({"i": i, "s": s, "f": None if f != f else f}).encode()
        for (i, _, f), s in zip(rows, texts, strict=True)
    ]
    decoded = text_decoder("json", fields, STRICT).decode(values)
    assert decoded.errors.null_count == len(rows)
    wanted = [{"i": i, "s": s, "f": None if f != f else f} for (i, _, f), s in zip(rows, texts, strict=True)]
    assert decoded.rows.to_pylist() == wanted


@pytest.mark.parametrize("depth", [100, 500, 1000, 1024, 2000])
def test_deeply_nested_json_becomes_a_row_or_an_error(depth: int) -> None:
    fields = [pa.field("a", pa.string()), pa.field("b", pa.decimal128(5, 2))]
    rules = rules_of("json", {"strings": "json"})
    values = [b'{"a":' + b"[" * depth + b"1.5" + b"]" * depth + b',"b":1.5}', b'{"a":1.5,"b":1.5}']
    rows = check_each_alone(text_decoder("json", fields, rules), values).rows.to_pylist()
    assert rows[1] == {"a": "1.5", "b": Decimal("1.50")}
    assert rows[0] in (None, {"a": "[" * depth + "1.5" + "]" * depth, "b": Decimal("1.50")})
    assert depth > 100 or rows[0] is not None
