"""Zigzag varints: known bytes, all widths, and the ends of the range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptBatch
from headrace.records.varint import encode_varint, rest_of_varint, unzigzag, wrap_int64


def decode(data: bytes) -> int:
    if data[0] < 0x80:
        return unzigzag(data[0])
    raw, position = rest_of_varint(data, 1, data[0])
    assert position == len(data)
    return unzigzag(raw)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_known_values_have_kafkas_bytes(value: int, encoded: str):
    assert encode_varint(value).hex() == encoded
    assert decode(bytes.fromhex(encoded)) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_int64_comes_back(value: int):
    assert decode(encode_varint(value)) == value


def test_eleven_bytes_are_refused():
    with pytest.raises(CorruptBatch):
        decode(b"\x80" * 10 + b"\x00")


def test_a_number_beyond_64_bits_is_refused():
    with pytest.raises(CorruptBatch):
        decode(b"\xff" * 9 + b"\x02")


def test_a_number_that_is_cut_short_runs_off_the_data():
    with pytest.raises(IndexError):
        decode(b"\x80\x80")


def test_long_addition_wraps_as_in_java():
    assert wrap_int64(2**63) == -(2**63)
    assert wrap_int64(-(2**63) - 1) == 2**63 - 1
    assert wrap_int64(-1) == -1
