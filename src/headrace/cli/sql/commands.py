"""`headrace sql`: SQL queries over topics, archives and lake tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.errors import extras_needed, fail, fail_usage, failures_told
from headrace.cli.common.exit_codes import examples
from headrace.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_pairs
from headrace.cli.common.output import note
from headrace.cli.sql.output import print_rows, print_rows_as_json, write_parquet

if TYPE_CHECKING:
    from headrace.spark.sql.client import Rows

EPILOG = examples(
    'headrace sql "select count(*) from orders"',
    'headrace sql "select customer, sum(amount) from orders group by 1" --json',
    'headrace sql "select * from orders join c using (id)" --table c=/lake/customers --parquet out.parquet',
    "headrace sql --stop",
)
# Maximum rows of a printed table; JSON and Parquet have all rows.
SHOWN_ROWS_MAX = 200


def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="SQL; every topic is a table of the same name.")
    ] = None,
    as_json: Json = False,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write the rows to a Parquet file.")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="NAME=PATH", help="Add a Delta, Iceberg or Parquet table; repeatable."),
    ] = None,
    idle: Annotated[float, typer.Option("--idle", min=1, help="Idle seconds until a new server exits.")] = 900.0,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the server.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run SQL over topics, archives and tables. The first query starts a Spark server, which later queries reuse."""
    with failures_told(bootstrap), extras_needed("queries"):
        from headrace.spark.sql import client

        if stop:
            note("SQL server stopped" if client.stop() else "no SQL server is running")
            return
        if query is None:
            fail_usage("QUERY is missing", 'headrace sql "select count(*) from orders"')
        tables = {name: str(Path(place).absolute()) for name, place in parse_pairs(table or [], "c=/lake/c").items()}
        is_for_programs = as_json or parquet is not None
        try:
            with client.open_query(
                query,
                bootstrap,
                tables,
                idle_s=idle,
                rows_max=None if is_for_programs else SHOWN_ROWS_MAX,
                distinct_names=is_for_programs,
            ) as rows:
                _show(rows, as_json, parquet)
        except client.QueryFailed as error:
            fail(str(error), error.hint or None)


def _show(rows: "Rows", as_json: bool, parquet: Path | None) -> None:
    if parquet is not None:
        write_parquet(rows, parquet)
    elif as_json:
        print_rows_as_json(rows)
    else:
        print_rows(rows)
