"""Request bodies with `Content-Encoding: gzip`, decompressed piece by piece as they come.

Decides which encodings are taken, and how much memory one piece of decompressed data takes.
"""

import zlib
from collections.abc import AsyncIterator

from headrace.gateway.problems import Problem

# A part of a body from the network has 64 KiB, and can stand for a thousand times as much.
PIECE_BYTES_MAX = 256 * 1024
# zlib copies what is behind the end of a member: thousands of tiny members in one part cost little this way.
_INPUT_BYTES = 4 * 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_GZIP = frozenset({"gzip", "x-gzip"})  # RFC 9110: the two are the same


def is_compressed(content_encoding: bytes | None) -> bool:
    """Whether the body is gzip; Problem 415 for any other encoding."""
    names = (content_encoding or b"").decode("latin-1").lower().split(",")
    encodings = [name for one in names if (name := one.strip()) not in ("", "identity")]
    if not encodings:
        return False
    if len(encodings) == 1 and encodings[0] in _GZIP:
        return True
    raise Problem(
        415,
        f"Content-Encoding is {', '.join(encodings)}; send the body as it is, or compress it with gzip once",
        headers={"accept-encoding": "gzip, identity"},
    )


async def inflated(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The decompressed body in pieces of at most PIECE_BYTES_MAX; Problem 400 if it is not whole gzip data."""
    try:
        async for piece in _inflated(parts):
            yield piece
    except zlib.error as error:
        raise Problem(400, f"the body is not the gzip data that Content-Encoding announces: {error}") from None


async def _inflated(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    member = zlib.decompressobj(_GZIP_WINDOW)
    async for part in parts:
        for start in range(0, len(part), _INPUT_BYTES):
            rest = part[start : start + _INPUT_BYTES]
            while rest:
                if member.eof:  # gzip data may consist of several members
                    member = zlib.decompressobj(_GZIP_WINDOW)
                piece = member.decompress(rest, PIECE_BYTES_MAX)
                if piece:
                    yield piece
                rest = member.unused_data if member.eof else member.unconsumed_tail
        # What a full piece left inside the decompressor comes without further input.
        while not member.eof and (piece := member.decompress(b"", PIECE_BYTES_MAX)):
            yield piece
    if not member.eof:
        raise Problem(400, "the body's gzip data ends in the middle; was the upload interrupted?")
