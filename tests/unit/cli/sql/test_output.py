"""Rows of a query as JSON that every parser reads, and as Parquet that is whole or not there."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from headrace.cli.sql.output import print_rows, print_rows_as_json, write_parquet
from headrace.spark.sql.client import Rows


def rows_of(table: pa.Table, count: int | None = None) -> Rows:
    return Rows(table.num_rows if count is None else count, table.to_reader(max_chunksize=2))


def printed(table: pa.Table, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    print_rows_as_json(rows_of(table))
    text = capsys.readouterr().out

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    found: list[dict[str, Any]] = json.loads(text, parse_constant=refused)
    assert text == json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    return found


VALUES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.float64(), float("nan"), "NaN"),
    (pa.float32(), float("inf"), "Infinity"),
    (pa.float64(), float("-inf"), "-Infinity"),
    (pa.float64(), -0.0, -0.0),
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.decimal128(20, 2), Decimal("12345678901234567.89"), "12345678901234567.89"),
    (pa.binary(), b"text", "text"),
    (pa.binary(), b"\xff", "base64:/w=="),
    (pa.date32(), date(1, 1, 1), "0001-01-01"),
    (pa.timestamp("us", "UTC"), datetime(1969, 12, 31, 23, 59, 59, 5, UTC), "1969-12-31T23:59:59.000005+00:00"),
    (pa.list_(pa.float64()), [float("nan"), None], ["NaN", None]),
    (pa.map_(pa.string(), pa.float64()), [("a", float("nan")), ("b", None)], {"a": "NaN", "b": None}),
    (pa.map_(pa.int32(), pa.binary()), [(1, b"x")], {"1": "x"}),
    (pa.map_(pa.binary(), pa.int32()), [(b"k", 1)], {"k": 1}),
    (pa.struct([("x", pa.list_(pa.date32()))]), {"x": [date(2026, 1, 2)]}, {"x": ["2026-01-02"]}),
]  # fmt: skip


def test_every_value_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, value, wanted in VALUES:
        found = printed(pa.table({"v": pa.array([value, None], kind)}), capsys)
        assert found == [{"v": wanted}, {"v": None}], kind


def test_bytes_that_pass_for_a_string_are_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    nested = pa.ListArray.from_arrays([0, 1], text)
    assert printed(pa.table({"v": text, "n": nested}), capsys) == [{"v": "a\ufffd", "n": ["a\ufffd"]}]


def test_times_after_the_year_9999_are_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = printed(pa.table({"v": pa.array([1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))}), capsys)
    assert isinstance(row["v"], str)


def test_no_rows_are_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(pa.table({"v": pa.array([], pa.int32())}), capsys) == []


def test_rows_of_several_batches_are_one_array(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(pa.table({"v": range(5)}), capsys) == [{"v": number} for number in range(5)]


def test_a_table_says_how_many_rows_it_does_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(rows_of(pa.table({"v": [1, 2]}), 1002))
    assert "… and 1,000 more" in capsys.readouterr().err


def test_a_parquet_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    write_parquet(rows_of(pa.table({"v": range(5)})), file)
    assert pq.read_table(file)["v"].to_pylist() == [*range(5)]
    schema = pa.schema([("v", pa.int64())])

    def broken() -> Any:
        yield pa.record_batch([pa.array([1], pa.int64())], schema=schema)
        raise OSError("the server has gone")

    with pytest.raises(OSError, match="has gone"):
        write_parquet(Rows(2, pa.RecordBatchReader.from_batches(schema, broken())), file)
    assert pq.read_table(file).num_rows == 5
    assert [one.name for one in tmp_path.iterdir()] == ["out.parquet"]
