"""Rows with every type that a pipeline can produce, and with the values that formats like to get wrong."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

TEXTS = ["a/b=c", "with blank", "é ü 漢 🙂", "%41", "__HIVE_DEFAULT_PARTITION__", "007", "x" * 5000, "null", "'\"\\\n"]
DATES = [date(1, 1, 1), date(1582, 10, 10), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)]
TIMES = [
    datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
]
# What a table can be partitioned by, and values of it. An empty string is apart: not every format has it.
PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "p_bool": (pa.bool_(), [True, False]),
    "p_i8": (pa.int8(), [-128, 0, 127]),
    "p_i16": (pa.int16(), [-32768, 32767]),
    "p_i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "p_i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "p_dec": (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("-99999999.99"), Decimal("0.00")]),
    "p_dec38": (pa.decimal128(38, 18), [Decimal("0E-18"), Decimal("12345678901234567890.123456789012345678")]),
    "p_str": (pa.string(), TEXTS),
    "p_date": (pa.date32(), DATES),
    "p_ts": (pa.timestamp("us", "UTC"), TIMES),
    "p_ntz": (pa.timestamp("us"), [one.replace(tzinfo=None) for one in TIMES]),
}
TAGS = pa.list_(pa.field("element", pa.string()))
PLACE = pa.struct([pa.field("x", pa.int16()), pa.field("at", pa.timestamp("us", "UTC")), pa.field("tags", TAGS)])
OTHERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "f32": (pa.float32(), [1.5, float("inf"), -0.0]),
    "f64": (pa.float64(), [0.1, float("-inf"), 1e308]),
    "bin": (pa.binary(), [b"", b"\x00\xff", b"text"]),
    "tags": (TAGS, [[], ["a", None, ""], ["é"]]),
    "counts": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("", None)]]),
    "place": (PLACE, [{"x": None, "at": None, "tags": None}, {"x": -1, "at": TIMES[2], "tags": [""]}]),
    "places": (pa.list_(pa.field("element", PLACE)), [[{"x": 1, "at": None, "tags": ["t"]}, None]]),
    "with blank": (pa.int32(), [1]),
    "a=b/ü.c": (pa.string(), ["v", ""]),
}  # fmt: skip
COLUMNS = {**OTHERS, **{name.replace("p_", ""): one for name, one in PARTITIONS.items()}, **PARTITIONS}
SCHEMA = pa.schema([pa.field("id", pa.int64()), *(pa.field(name, kind) for name, (kind, _) in COLUMNS.items())])


def reference() -> list[dict[str, Any]]:
    """Row `n` has each column's value `n`, round and round; the last row has nulls alone."""
    count = max(len(values) for _, values in COLUMNS.values())
    rows = [{"id": n, **{name: one[n % len(one)] for name, (_, one) in COLUMNS.items()}} for n in range(count)]
    return [*rows, {"id": count, **dict.fromkeys(COLUMNS)}]


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """By id, as Python has it; the width of integers and offsets is left to the format."""
    rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))
