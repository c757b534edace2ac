"""CRC32C of many ranges of one file, at the cost of one pass over the file.

The checksum of a range follows from those of the two prefixes that end where the range begins and ends: appending n
bytes multiplies a checksum by x^8n modulo the polynomial. Ranges may overlap. Adversarial record contents can name a
range of megabytes every 61 bytes; reading each of them would be quadratic.
"""

from array import array
from functools import cache

from headrace.records.crc import crc32c
from headrace.storage.io.file_system import File

_POLYNOMIAL = 0x82F63B78  # bit-reversed: the highest bit is the coefficient of x^0
_ONE = 1 << 31
_X8 = 1 << 23
BLOCK_BYTES = 4096  # between two known prefixes: read for each end of a range
_CHUNK_BYTES = 256 * BLOCK_BYTES  # one read while the prefixes are computed


class RangeChecksums:
    """Checksums of ranges from `start` on, whose bytes do not change during its use. The file may grow."""

    def __init__(self, file: File, start: int) -> None:
        self._file = file
        self._start = start
        self._prefixes = array("I", [0])  # checksum of the first n blocks, by n

    def of(self, start: int, end: int) -> int | None:
        """Returns the checksum of the bytes from `start` to `end`.

        Returns None if a concurrent truncation ended the file before.
        """
        before, all_ = self._prefix(start), self._prefix(end)
        return None if before is None or all_ is None else all_ ^ _times(before, _appended(end - start))

    def _prefix(self, end: int) -> int | None:
        block, rest = divmod(end - self._start, BLOCK_BYTES)
        while len(self._prefixes) <= block:
            if not self._compute():
                return None
        if not rest:
            return self._prefixes[block]
        data = self._file.read(end - rest, rest)
        return crc32c(data, self._prefixes[block]) if len(data) == rest else None

    def _compute(self) -> bool:
        position = self._start + (len(self._prefixes) - 1) * BLOCK_BYTES
        # Not after `size`: what an append is writing there may be truncated and written again.
        length = max(0, min(_CHUNK_BYTES, self._file.size - position))
        chunk = memoryview(self._file.read(position, length))
        for at in range(0, len(chunk) - BLOCK_BYTES + 1, BLOCK_BYTES):
            self._prefixes.append(crc32c(chunk[at : at + BLOCK_BYTES], self._prefixes[-1]))
        return len(chunk) >= BLOCK_BYTES


def _times(one: int, other: int) -> int:
    """Returns the product of two polynomials modulo the CRC32C polynomial."""
    product, bit = 0, _ONE
    while one:
        if one & bit:
            product ^= other
            one ^= bit
        bit >>= 1
        other = other >> 1 ^ _POLYNOMIAL if other & 1 else other >> 1
    return product


def _appended(length: int) -> int:
    """Returns x^8n for n bytes: the product of one factor for each byte of n."""
    product, place = _ONE, 0
    while length:
        if length & 0xFF:
            product = _times(_powers(place)[length & 0xFF], product)
        length >>= 8
        place += 1
    return product


@cache
def _powers(place: int) -> list[int]:
    """Returns x^8n for every n that has one nonzero byte, at this index."""
    base = _X8 if place == 0 else _times(_powers(place - 1)[255], _powers(place - 1)[1])
    powers = [_ONE]
    for _ in range(255):
        powers.append(_times(powers[-1], base))
    return powers
