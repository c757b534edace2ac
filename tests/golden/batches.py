"""Record batches, byte by byte: they do not depend on the product's own writer or on a compression library."""

from collections.abc import Iterable, Sequence
from struct import pack, pack_into

from crc32c import crc32c

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
TRANSACTIONAL, CONTROL = 0x10, 0x20
CREATE_TIME_MS = 1_699_999_999_000
_CRC_AT = 17
_COVERED_FROM = 21

Record = tuple[bytes | None, bytes | None]


def batch(
    *values: str | Record,
    timestamp: int = CREATE_TIME_MS,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    attributes: int = 0,
    section: bytes | None = None,
    magic: int = 2,
    count: int | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> bytes:
    """A value that is no pair has no key. `section` replaces the encoded records."""
    records = [one if isinstance(one, tuple) else (None, one.encode()) for one in values]
    count = len(records) if count is None else count
    body = (
        b"".join(_record(number, *one, headers) for number, one in enumerate(records)) if section is None else section
    )
    out = bytearray(
        pack(
            ">qiibIhiqqqhii",
            0,
            49 + len(body),
            -1,
            magic,
            0,
            attributes,
            count - 1,
            timestamp,
            timestamp,
            *producer,
            sequence,
            count,
        )
    )
    out += body
    pack_into(">I", out, _CRC_AT, crc32c(bytes(out[_COVERED_FROM:])))
    return bytes(out)


def with_wrong_checksum(good: bytes) -> bytes:
    return good[:_CRC_AT] + bytes([good[_CRC_AT] ^ 1]) + good[_CRC_AT + 1 :]


def records_section(values: Iterable[str]) -> bytes:
    return b"".join(_record(number, None, value.encode(), ()) for number, value in enumerate(values))


def zstd_frame(data: bytes) -> bytes:
    """One raw block: what every decompressor reads, and no compressor has to write."""
    assert len(data) < 256
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(data)]) + (len(data) << 3 | 1).to_bytes(3, "little") + data


def _record(number: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> bytes:
    body = b"\x00\x00" + _varint(number) + _sized(key) + _sized(value) + _varint(len(headers))
    body += b"".join(_sized(name.encode()) + _sized(content) for name, content in headers)
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
