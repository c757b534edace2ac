"""`headrace sql`: questions to topics, their archives and lake tables."""

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.exit_codes import examples
from headrace.cli.extras import extras_needed
from headrace.cli.failures import fail, fail_usage, failures_told
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_pairs
from headrace.cli.output import note, plural, print_json, print_table

if TYPE_CHECKING:
    import pyarrow as pa

EPILOG = examples(
    'headrace sql "select count(*) from orders"',
    'headrace sql "select customer, sum(amount) from orders group by 1" --json',
    'headrace sql "select * from orders join c using (id)" --table c=/lake/customers --parquet out.parquet',
    "headrace sql --stop",
)
# What a table on a screen is good for; JSON and Parquet have all rows.
SHOWN_ROWS_MAX = 200


def sql(
    query: Annotated[str | None, typer.Argument(metavar="QUERY", help="SQL; topics are tables by their names.")] = None,
    as_json: Json = False,
    parquet: Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help="Write the rows to a file.")] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME=PATH", help="A Delta, Iceberg or Parquet table.")
    ] = None,
    idle: Annotated[float, typer.Option("--idle", min=1, help="Seconds until a new server ends by itself.")] = 900.0,
    stop: Annotated[bool, typer.Option("--stop", help="End the server that waits for the next query.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Ask topics, archives and tables. The first query starts a Spark, which stays for the next ones."""
    with failures_told(bootstrap), extras_needed("queries"):
        from headrace.spark.sql import client

        if stop:
            note("the SQL server has stopped" if client.stop() else "no SQL server runs")
            return
        if query is None:
            fail_usage("there is no query", 'headrace sql "select count(*) from orders"')
        tables = {name: str(Path(place).absolute()) for name, place in parse_pairs(table or [], "c=/lake/c").items()}
        try:
            rows = client.query(query, bootstrap, tables, idle_s=idle)
        except client.QueryFailed as error:
            fail(str(error), error.hint or None)
        _show(rows, as_json, parquet)


def _show(rows: "pa.Table", as_json: bool, parquet: Path | None) -> None:
    if parquet is not None:
        from pyarrow import parquet as pq

        pq.write_table(rows, parquet, compression="zstd")
        note(f"wrote {plural(rows.num_rows, 'row')} to {parquet}")
    elif as_json:
        print_json([{name: _plain(value) for name, value in row.items()} for row in rows.to_pylist()])
    else:
        shown = rows.slice(0, SHOWN_ROWS_MAX).to_pylist()
        print_table(rows.column_names, [[_cell(value) for value in row.values()] for row in shown])
        if rows.num_rows > SHOWN_ROWS_MAX:
            note(f"… and {rows.num_rows - SHOWN_ROWS_MAX:,} more; --json and --parquet give all")


def _plain(value: Any) -> Any:
    """As JSON has it. Bytes that are text are text."""
    match value:
        case bytes():
            return _text(value)
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case _:
            return value


def _cell(value: Any) -> Any:
    plain = _plain(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, (dict, list)) else plain


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
