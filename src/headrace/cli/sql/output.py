"""Output of `headrace sql`: the rows of a query as a table, JSON or Parquet, batch by batch."""

import base64
import json
import math
import sys
import textwrap
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.cli.common.output import note, plural, print_table

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.sql.client import Rows

# Rows that are converted to Python objects at once.
ROWS_AT_ONCE = 1_000


def write_parquet(rows: "Rows", file: Path) -> None:
    """Writes a temporary file and renames it when complete; a query that fails leaves the existing file."""
    from headrace.lake.parquet import FileWriter

    unfinished = file.absolute().with_name(f".{file.name}.{uuid4().hex}")
    try:
        writer = FileWriter(str(unfinished), rows.reader.schema)
        for batch in rows.reader:
            writer.write(batch)
        written = writer.close().rows
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    note(f"wrote {plural(written, 'row')} to {file}")


def print_rows_as_json(rows: "Rows") -> None:
    """Prints one array in the format of `print_json`."""
    separator = "[\n"
    for row in _rows(rows.reader):
        text = json.dumps(row, indent=2, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(separator + textwrap.indent(text, "  ", lambda line: True))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def print_rows(rows: "Rows") -> None:
    names = rows.reader.schema.names
    shown = [[_cell(value) for value in values] for values in _values(rows.reader)]
    print_table(names, shown)
    if rows.count > len(shown):
        note(f"… and {rows.count - len(shown):,} more; --json and --parquet return all rows")


def _rows(reader: "pa.RecordBatchReader") -> Iterator[dict[str, Any]]:
    for values in _values(reader):
        yield dict(zip(reader.schema.names, values, strict=True))


def _values(reader: "pa.RecordBatchReader") -> Iterator[tuple[Any, ...]]:
    for batch in reader:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            columns = [[plain(value, column.type) for value in _objects(column)] for column in part.columns]
            yield from zip(*columns, strict=True)


def _objects(column: "pa.Array") -> list[Any]:
    import pyarrow as pa

    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:  # Spark allows strings that are not valid UTF-8
        values = column.cast(_as_bytes(column.type)).to_pylist()
    except (OverflowError, ValueError):  # Python has no times of the year 10000 or later
        values = column.cast(pa.string()).to_pylist()
    return values


def _as_bytes(kind: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _as_bytes(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _as_bytes(one.type)) for one in kind])
    return kind


def plain(value: Any, kind: "pa.DataType") -> Any:
    """Converts a value for JSON. Bytes that are UTF-8 become text; NaN and infinities become strings, as in Spark."""
    import pyarrow as pa

    match value:
        case None:
            return None
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return value.decode(errors="replace") if pa.types.is_string(kind) else _text(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {field.name: plain(value[field.name], field.type) for field in kind}
        case list() if pa.types.is_map(kind):
            return {_key(key, kind.key_type): plain(one, kind.item_type) for key, one in value}
        case list():
            return [plain(one, kind.value_type) for one in value]
        case _:
            return value


def _key(value: Any, kind: "pa.DataType") -> str:
    key = plain(value, kind)
    return key if isinstance(key, str) else json.dumps(key, ensure_ascii=False)


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
