"""Compressed bodies: whole, in pieces, too large once decompressed, broken, in encodings that are not taken."""

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.rest.errors import Problem
from headrace.api.rest.http import PIECE_BYTES_MAX, body_parts, read_body
from tests.unit.api.rest.test_http import receiving

GZIP = {"headers": [(b"content-encoding", b"gzip")]}


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(marks)]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.lists(st.integers(0, 500), max_size=4))
async def test_gzip_members_cut_anywhere_are_decompressed(members, places):
    data = b"".join(map(gzip.compress, members))
    assert await read_body(GZIP, receiving(*cut(data, places), then="end"), 1_000) == b"".join(members)


async def test_pieces_of_a_stream_are_bounded():
    content = bytes(20 * PIECE_BYTES_MAX)
    pieces = [one async for one in body_parts(GZIP, receiving(gzip.compress(content), then="end"))]
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= PIECE_BYTES_MAX


async def test_a_body_beyond_the_limit_once_decompressed_is_refused():
    bomb = gzip.compress(bytes(1_000_000))
    assert len(bomb) < 10_000
    with pytest.raises(Problem) as refused:
        await read_body(GZIP, receiving(bomb, then="end"), 10_000)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"plain", gzip.compress(b"x" * 100)[:-1], gzip.compress(b"x") + b"rest", zlib.compress(b"x")],
    ids=["empty", "plain", "cut", "followed", "deflate"],
)
async def test_what_is_not_whole_gzip_data_is_refused(body):
    with pytest.raises(Problem) as refused:
        await read_body(GZIP, receiving(body, then="end"), 1_000)
    assert refused.value.status == 400


async def test_gzip_data_with_a_flipped_bit_is_refused():
    data = bytearray(gzip.compress(b"x" * 100))
    data[-8] ^= 1  # the checksum
    with pytest.raises(Problem) as refused:
        await read_body(GZIP, receiving(bytes(data), then="end"), 1_000)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("encoding", "body"), [(b"identity", b"x"), (b"", b"x"), (b"X-GZIP", gzip.compress(b"x", mtime=0))]
)
async def test_identity_and_other_spellings_are_taken(encoding, body):
    scope = {"headers": [(b"content-encoding", encoding)]}
    assert await read_body(scope, receiving(body, then="end"), 10) == b"x"


@pytest.mark.parametrize("encoding", [b"br", b"deflate", b"zstd", b"gzip, gzip", b"\xff"])
async def test_another_encoding_is_refused_with_those_taken(encoding):
    scope = {"headers": [(b"content-encoding", encoding)]}
    with pytest.raises(Problem) as refused:
        await read_body(scope, receiving(b"x", then="end"), 10)
    assert refused.value.status == 415
    assert refused.value.headers == {"accept-encoding": "gzip, identity"}
