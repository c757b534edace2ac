"""Between numpy and Arrow: the same values, with nulls and from the middle of an array; and nobody wakes pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa

from headrace.records.arrow.arrays import array_of, array_with_nulls, bytes_scalar, is_valid, numbers_of, without_nulls

READ_AND_WRITE = """
import sys
import numpy as np
import pyarrow as pa
import headrace.spark.connector.datasource
from headrace.records.arrow.decode import decode_columns
from headrace.records.arrow.arrays import array_of
from headrace.records.arrow.encode import RecordColumns, build_section
from headrace.records.batch import BatchHeader, parse_header
from headrace.records.builder import sealed

edges = pa.py_buffer(np.array([0, 3, 7], dtype=np.int32))
values = pa.Array.from_buffers(pa.binary(), 2, [None, edges, pa.py_buffer(b"onetwoo")])
section, base, newest = build_section(RecordColumns(np.array([5, 6]), values, values, None))
batch = sealed(
    BatchHeader(
        base_offset=0, length=0, leader_epoch=0, magic=2, crc=0, attributes=0, last_offset_delta=1,
        base_timestamp=base, max_timestamp=newest, producer_id=-1, producer_epoch=-1, base_sequence=-1, record_count=2,
    ),
    section,
)
header = parse_header(batch)
every = ["key", "value", "offset", "timestamp", "timestampType", "headers"]
columns = decode_columns([(memoryview(batch), header)], every)
assert columns.arrays["value"].to_pylist() == [b"one", b"twoo"]
assert "pandas" not in sys.modules
"""


def test_numbers_become_arrays_and_numbers_again() -> None:
    numbers = np.arange(100, dtype=np.int32)
    is_null = numbers % 3 == 0
    array = array_with_nulls(numbers, is_null)
    array.validate(full=True)
    assert array.to_pylist() == [None if number % 3 == 0 else number for number in range(100)]
    part = array.slice(7, 50)
    assert numbers_of(part, null=-1).tolist() == [-1 if n % 3 == 0 else n for n in range(7, 57)]
    assert is_valid(part).tolist() == [n % 3 != 0 for n in range(7, 57)]
    assert numbers_of(array_of(numbers[::2])).tolist() == list(range(0, 100, 2))
    assert numbers_of(array.slice(5, 0)).tolist() == []
    assert is_valid(array_of(numbers[:3])).tolist() == [True] * 3


def test_bytes() -> None:
    assert bytes_scalar(b"abc", pa.binary()).as_py() == b"abc"
    assert bytes_scalar("ä".encode(), pa.string()).as_py() == "ä"
    assert without_nulls(pa.array([b"a", None, b"c"])).to_pylist() == [b"a", b"", b"c"]


def test_reading_and_writing_do_not_import_pandas() -> None:
    """It would cost every one of Spark's workers 0.4 s of CPU."""
    done = subprocess.run([sys.executable, "-c", READ_AND_WRITE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
