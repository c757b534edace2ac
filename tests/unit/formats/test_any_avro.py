"""Any Avro value becomes a row or an error, and no record changes what another one becomes.

Schemas and values are generated. Values that fit, values of other schemas, and both with bytes changed, cut or added.
"""

from io import BytesIO
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.avro_reader import reader_of, resolver
from headrace.formats.avro_schema import AvroSchema, columns
from headrace.formats.row_decoder import RowDecoder
from tests.unit.formats.any_bytes import EXAMPLES, batches, check_each_alone

PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
    {"type": "int", "logicalType": "unheard-of"},
)


class AvroTypes:
    """Draws Avro types, some of which reuse a name that was defined before."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._names: list[str] = []

    def record(self, depth: int) -> dict[str, Any]:
        name = self._name()
        count = self._draw(st.integers(1, 3))
        fields = [{"name": f"f{at}", "type": self.type(depth)} for at in range(count)]
        self._names.append(name)  # not before: it would contain itself
        return {"type": "record", "name": name, "fields": fields}

    def type(self, depth: int) -> Any:
        kinds = ["primitive", "logical", "enum", "fixed", "uuid"] + ["named"] * bool(self._names)
        kinds += ["record", "array", "map", "nullable", "union"] * (depth > 0)
        match self._draw(st.sampled_from(kinds)):
            case "primitive":
                return self._draw(st.sampled_from(PRIMITIVES))
            case "logical":
                return self._draw(st.sampled_from(LOGICAL))
            case "named":
                return self._draw(st.sampled_from(self._names))
            case "record":
                return self.record(depth - 1)
            case "array":
                return {"type": "array", "items": self.type(depth - 1)}
            case "map":
                return {"type": "map", "values": self.type(depth - 1)}
            case "nullable":
                return ["null", self._draw(st.sampled_from(PRIMITIVES))]
            case "union":
                branches = self._draw(st.lists(st.sampled_from(PRIMITIVES), min_size=1, max_size=3, unique=True))
                return [*self._draw(st.sampled_from([[], ["null"]])), *branches, self.record(0)]
            case "enum":
                return self._defined({"type": "enum", "symbols": ["A", "B"]})
            case "fixed":
                return self._defined({"type": "fixed", "size": self._draw(st.integers(1, 3))})
            case _:
                return self._defined({"type": "fixed", "size": 16, "logicalType": "uuid"})

    def _defined(self, schema: dict[str, Any]) -> dict[str, Any]:
        name = self._name()
        self._names.append(name)
        return {**schema, "name": name}

    def _name(self) -> str:
        self._count = getattr(self, "_count", 0) + 1
        return f"ns{self._count % 2}.N{self._count}"


@st.composite
def avro_records(draw: st.DrawFn) -> dict[str, Any]:
    return AvroTypes(draw).record(depth=2)


@st.composite
def avro_values(draw: st.DrawFn, schema: Any, named: dict[str, Any]) -> Any:
    """Plain values: fastavro writes them, of a schema without logical types."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        return draw(avro_values(draw(st.sampled_from(schema)), named))
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int":
            return draw(st.integers(-(2**31), 2**31 - 1))
        case "long":
            return draw(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2 * 10**15)))
        case "float":
            return draw(st.floats(width=32))
        case "double":
            return draw(st.floats())
        case "bytes":
            return draw(st.binary(max_size=4))
        case "string":
            return draw(st.text(st.characters(codec="utf-8"), max_size=6))
        case "fixed":
            return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
        case "enum":
            return draw(st.sampled_from(schema["symbols"]))
        case "array":
            return draw(st.lists(avro_values(schema["items"], named), max_size=3))
        case "map":
            return draw(
                st.dictionaries(
                    st.text(st.characters(codec="utf-8"), max_size=3), avro_values(schema["values"], named), max_size=3
                )
            )
        case _:
            return {one["name"]: draw(avro_values(one["type"], named)) for one in schema["fields"]}


def plain(schema: Any) -> Any:
    """Without logical types."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if isinstance(schema, dict):
        return {key: plain(one) for key, one in schema.items() if key not in ("logicalType", "precision", "scale")}
    return schema


def encoded(schema: Any, row: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain(schema)), row)
    return out.getvalue()


@EXAMPLES
@given(st.data())
def test_any_avro_becomes_a_row_or_an_error(data: st.DataObject) -> None:
    tree = data.draw(avro_records())
    schema = AvroSchema(tree)
    rows = avro_values(schema.root, dict(schema.named))
    values = data.draw(batches(rows.map(lambda row: encoded(tree, row))))
    check_each_alone(RowDecoder(reader_of(schema), columns(schema)), values)
    if data.draw(st.booleans()):
        check_each_alone(RowDecoder(resolver(AvroSchema(tree), schema), columns(schema)), values)


@EXAMPLES
@given(st.data())
def test_avro_that_fits_is_read_as_it_was_written(data: st.DataObject) -> None:
    types = st.sampled_from(PRIMITIVES)
    tree = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": data.draw(types)},
        {"name": "b", "type": ["null", data.draw(types)]},
        {"name": "c", "type": {"type": "array", "items": data.draw(types)}},
    ]}  # fmt: skip
    schema = AvroSchema(tree)
    rows = data.draw(st.lists(avro_values(schema.root, {}), max_size=4))
    decoded = RowDecoder(reader_of(schema), columns(schema)).decode([encoded(tree, row) for row in rows])
    assert decoded.errors.null_count == len(rows), decoded.errors
    assert repr(decoded.rows.to_pylist()) == repr(rows)
