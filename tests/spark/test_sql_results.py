"""Results of any size and of every type, and a server that is replaced when its Spark has ended."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyarrow import parquet as pq

from headrace.cli.app import run
from headrace.spark.sql import client
from headrace.spark.sql import client as wire
from headrace.spark.sql.results import DIRECTORY
from headrace.spark.sql.server import SqlServer
from tests.patience import awaited
from tests.spark.kit import SparkKit
from tests.spark.test_sql import server

__all__ = ["server"]  # a fixture

WAIT_S = 120
VALUES = """
select double('NaN') as nan, float('-inf') as infinite, interval 26 hours as hours, interval 14 months as months,
       make_interval(1, 2, 3) as mixed, array(interval 1 day) as days, parse_json('{"a": [1.5]}') as variant,
       null as nothing, map('k', double('Infinity')) as map, cast(unhex('61ff') as string) as broken,
       unhex('ff') as bytes, named_struct('a.b', 1.10BD) as `dotted.name`, timestamp_micros(-1) as before
"""
SHOWN = {
    "nan": "NaN",
    "infinite": "-Infinity",
    "hours": "INTERVAL '26' HOUR",
    "months": "INTERVAL '14' MONTH",
    "mixed": "1 years 2 months 21 days",
    "days": ["INTERVAL '1' DAY"],
    "variant": '{"a":[1.5]}',
    "nothing": None,
    "map": {"k": "Infinity"},
    "broken": "a\ufffd",
    "bytes": "base64:/w==",
    "dotted.name": {"a.b": "1.10"},
    "before": "1969-12-31T23:59:59.999999+00:00",
}


def refused(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_values_of_every_type_are_valid_json(
    kit: SparkKit, server: SqlServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["sql", VALUES, "--json", "-b", kit.bootstrap]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=refused) == [SHOWN]
    assert run(["sql", VALUES, "--parquet", str(tmp_path / "out.parquet"), "-b", kit.bootstrap]) == 0
    assert pq.read_table(tmp_path / "out.parquet").column_names == [*SHOWN]
    assert run(["sql", "select 1 as n where false", "--json", "-b", kit.bootstrap]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("query", ["select 1 as a, 2 as a", "select array(struct(1 as a, 2 as a)) as s"])
def test_columns_of_one_name_are_refused_for_programs(
    kit: SparkKit, server: SqlServer, query: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sql", query, "--json", "-b", kit.bootstrap]) == 1
    assert "two columns named a; rename one of them with `as`" in capsys.readouterr().err


def test_columns_of_one_name_are_shown_to_people(
    kit: SparkKit, server: SqlServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sql", "select 'x1' as a, 'x2' as a", "-b", kit.bootstrap]) == 0
    shown = capsys.readouterr().out
    assert "x1" in shown
    assert "x2" in shown


def test_rows_come_in_order_whether_by_file_or_not(kit: SparkKit, server: SqlServer) -> None:
    for count in (10, 300_000):
        query = f"select id from range(0, {count}, 1, 7) order by id desc"
        assert client.query(query, kit.bootstrap, {})["id"].to_pylist() == [*range(count - 1, -1, -1)]
    assert list((wire.folder() / DIRECTORY).iterdir()) == []
    with client.open_query(query, kit.bootstrap, {}, rows_max=5) as rows:
        assert (rows.count, rows.reader.read_all().num_rows) == (300_000, 5)


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process as `headrace sql` starts it, with the least memory that Spark takes."""
    monkeypatch.setenv(wire.FOLDER_VARIABLE, str(tmp_path / "s"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 512m pyspark-shell")
    yield
    client.stop()


@contextmanager
def asked(kit: SparkKit, query: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A query that is still running when the test fails ends with it."""
    command = [sys.executable, "-m", "headrace.cli.main", "sql", query, *options, "-b", kit.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def java_of_the_server() -> psutil.Process:
    for process in psutil.process_iter(["cmdline"]):
        if str(wire.folder()) in (process.info["cmdline"] or []):
            return next(one for one in process.children(recursive=True) if one.name() == "java")
    raise AssertionError("there is no server")


@pytest.mark.usefixtures("own_server")
def test_results_larger_than_its_memory_and_a_spark_that_ends(kit: SparkKit, tmp_path: Path) -> None:
    large = "select id, repeat('x', 2000) as text from range(0, 300000, 1, 2)"
    with asked(kit, large, "--parquet", str(tmp_path / "out.parquet")) as writing:
        assert "wrote 300,000 rows" in writing.communicate()[1]
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 300_000

    # Its first rows come at once. A query whose tasks have not begun would be repeated by another server.
    endless = "select id, repeat('x', 200) as text from range(100000000000000) where id < 30000"
    with asked(kit, endless) as running:
        awaited(lambda: [*(wire.folder() / DIRECTORY).glob("*/*.arrows")], bool, "rows are written", WAIT_S)
        java_of_the_server().kill()
        assert "Java process ended" in running.communicate()[1]
    with asked(kit, "select 1 as n", "--json") as next_one:
        assert json.loads(next_one.communicate()[0]) == [{"n": 1}], "another server"
