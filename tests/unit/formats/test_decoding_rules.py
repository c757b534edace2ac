"""The tables of docs/reference/decoding.md, row by row, by the decoders of pipelines and of archives."""

import ast
import json
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from headrace.archive.decode import DECODE_ERROR, ValueSchema, with_decoded
from headrace.formats.avro_schema import AvroSchema, columns
from headrace.formats.ddl import columns_of
from headrace.formats.decoding_rules import OPTIONS, STRICT, rules_of
from headrace.formats.protobuf_reader import message_columns
from headrace.formats.text_decoder import text_decoder
from headrace.model.errors import InvalidConfig
from headrace.spark.pipeline.decode_protobuf import compile_proto, find_message

PAGE = (Path(__file__).parents[3] / "docs/reference/decoding.md").read_text()
ERROR = "error"
ROW = re.compile(r"\| (.*) \|")
CODE = re.compile(r"`([^`]+)`")


def rows(section: str, head: str) -> Iterator[list[str]]:
    """Of the table below this heading that begins with this line, by cells."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    table = text.split(f"{head}\n")[1].split("\n\n")[0]
    for line in table.splitlines()[1:]:
        yield [cell.strip() for cell in line.strip("|").split(" |")]


def code(cell: str) -> str:
    found = CODE.findall(cell)
    return found[0] if found else cell


class Case(NamedTuple):
    format: str
    column: str
    value: bytes
    options: dict[str, str]
    wanted: str


def as_bytes(text: str) -> bytes:
    return bytes(ast.literal_eval(text)) if text.startswith("b'") else text.encode()


def typed_cases(section: str, head: str, value_of: Any) -> Iterator[Case]:
    for column, value, wanted, option in rows(section, head):
        yield Case(section.lower(), code(column), value_of(code(value)), {}, code(wanted))
        if option:
            name, chosen = code(option).split(": ", 1)
            result = CODE.findall(option)[1:]
            yield Case(section.lower(), code(column), value_of(code(value)), {name: chosen}, (*result, ERROR)[0])


CASES = [
    *(Case("json", "bigint", as_bytes(CODE.findall(f"{value} ")[0]), {}, code(wanted))
      for value, wanted in rows("JSON", "| value | becomes |")),
    *typed_cases("JSON", "| column | value | becomes | with an option |", lambda text: f'{{"id":{text}}}'.encode()),
    *typed_cases("CSV", "| column | field | becomes | with an option |", str.encode),
]  # fmt: skip


def shown(value: Any) -> str:
    """As the page writes it."""
    match value:
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case list() | dict():
            return json.dumps(value, default=str)
        case _:
            return str(value)


def value_or_error(values: list[Any], errors: list[str | None]) -> str:
    (value,), (error,) = values, errors
    return ERROR if error is not None else shown(dict(value) if isinstance(value, list) and is_map(value) else value)


def is_map(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(one, tuple) for one in value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pipeline_decodes_value_as_documented(case: Case) -> None:
    fields = list(columns_of(f"id {case.column}"))
    decoded = text_decoder(case.format, fields, rules_of(case.format, case.options)).decode([case.value])
    assert value_or_error(decoded.rows.field("id").to_pylist(), decoded.errors.to_pylist()) == case.wanted


@pytest.mark.parametrize("case", [one for one in CASES if one.format == "json"], ids=str)
def test_archive_decodes_value_as_documented(case: Case) -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array([case.value], pa.binary())})
    decoding = ValueSchema("json", f"id {case.column}", tuple(case.options.items()))
    assert ValueSchema.parse(str(decoding)) == decoding
    decoded = with_decoded(batch, decoding)
    assert value_or_error(decoded.column("id").to_pylist(), decoded.column(DECODE_ERROR).to_pylist()) == case.wanted


@pytest.mark.parametrize(("value", "wanted"), list(rows("CSV", "| value | for `a string, b string` |")))
def test_csv_line_has_documented_fields(value: str, wanted: str) -> None:
    line = as_bytes(re.fullmatch(r"`(.*)`", value)[1])
    decoded = text_decoder("csv", list(columns_of("a string, b string")), STRICT).decode([line])
    found = ERROR if decoded.errors[0].is_valid else json.dumps(decoded.rows[0].as_py())
    assert found == code(wanted)


@pytest.mark.parametrize(("avro", "column"), list(rows("Avro", "| Avro type | column |")))
def test_avro_type_has_documented_column(avro: str, column: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": json.loads(code(avro))}]}
    assert columns(AvroSchema(schema)).type == pa.struct(list(columns_of(f"id {code(column)}")))


def test_protobuf_types_have_documented_columns() -> None:
    table = list(rows("Protobuf", "| Protobuf type | column |"))
    fields = "\n".join(f"{code(type_)} f{at} = {at + 1};" for at, (type_, _) in enumerate(table))
    imports = 'import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";'
    compiled = compile_proto(f'syntax = "proto3"; {imports} message M {{ {fields} }}')
    assert FileDescriptorSet.FromString(compiled).file, "it compiles"
    wanted = columns_of(", ".join(f"f{at} {code(column)}" for at, (_, column) in enumerate(table)))
    assert message_columns(find_message(compiled, "M"), STRICT).type == pa.struct(list(wanted))


def test_every_option_is_documented() -> None:
    table = PAGE.split("| option |")[1].split("\n\n")[0]
    documented = {name for row in table.splitlines()[2:] for name in CODE.findall(row.split(" |")[0])}
    assert documented == {name for names in OPTIONS.values() for name in names}


@pytest.mark.parametrize("format_", OPTIONS)
def test_tombstone_is_an_error_unless_it_is_allowed(format_: str) -> None:
    assert "tombstones: nulls" in str(rules_of(format_, {}).tombstone_error)
    assert rules_of(format_, {"tombstones": "nulls"}).tombstone_error is None


def test_record_without_a_not_null_column_is_an_error() -> None:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.struct([pa.field("a", pa.int64(), False)]))]
    values = [b'{"id":1}', b'{"id":null}', b"{}", b'{"id":1,"s":{}}', b'{"id":1,"s":null}', b'{"id":1,"s":{"a":2}}']
    decoded = text_decoder("json", fields, STRICT).decode(values)
    assert [row and row["id"] for row in decoded.rows.to_pylist()] == [1, None, None, None, 1, 1]
    assert decoded.errors.to_pylist()[3] == "s.a: is null or missing, and the schema has NOT NULL"


@pytest.mark.parametrize(
    ("format_", "given", "complaint"),
    [
        ("json", {"timestamp": "seconds"}, "format json has no option 'timestamp'; did you mean timestamps?"),
        ("json", {"timestamps": "ms"}, "timestamps is one of text, seconds, milliseconds, microseconds, not 'ms'"),
        ("text", {"sep": ","}, "format text has no option 'sep'; it has none"),
        ("csv", {"sep": "::"}, "sep is a single character, not '::'"),
        ("csv", {"sep": '"'}, "sep and quote are the same character"),
    ],
)
def test_unknown_option_is_refused_with_a_remedy(format_: str, given: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(complaint)):
        rules_of(format_, given)


@pytest.mark.parametrize("column", ["interval day", "map<int,int>"])
def test_column_that_json_has_no_values_for_is_refused(column: str) -> None:
    type_ = pa.duration("us") if column.startswith("interval") else pa.map_(pa.int32(), pa.int32())
    with pytest.raises(InvalidConfig):
        text_decoder("json", [pa.field("id", type_)], STRICT)


def test_csv_may_escape_quotes_with_a_backslash() -> None:
    rules = rules_of("csv", {"escape": "\\", "sep": ";"})
    decoded = text_decoder("csv", list(columns_of("a string, b string")), rules).decode([rb'"x\"\\y;";z'])
    assert decoded.rows.to_pylist() == [{"a": 'x"\\y;', "b": "z"}]
