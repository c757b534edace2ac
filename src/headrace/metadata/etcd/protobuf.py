"""Protocol buffers, as far as etcd's messages need them: numbers, bytes and messages within messages.

    field = varint(number << 3 | kind) value      kind 0: a varint    kind 2: varint(length) bytes
    varint = seven bits a byte, lowest first; the high bit says that more follow

A field that is zero or empty is left out, as proto3 has it. Decides nothing about what a field means.
"""

from collections.abc import Iterator

from headrace.model.errors import ProtocolError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10  # 64 bits, seven at a time
_UINT64 = (1 << 64) - 1
_SIGN = 1 << 63


def number(field: int, value: int) -> bytes:
    """An int64, uint64, enum or bool."""
    return _varint(field << 3 | _VARINT) + _varint(value & _UINT64) if value else b""


def data(field: int, value: bytes) -> bytes:
    return message(field, value) if value else b""


def message(field: int, value: bytes) -> bytes:
    """Unlike plain bytes, an empty message says something: that it is there."""
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode())


def fields(encoded: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field, number, bytes) of each field, one of the two being 0 or empty; numbers are signed."""
    position = 0
    while position < len(encoded):
        tag, position = _read_varint(encoded, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _read_varint(encoded, position)
            yield tag >> 3, value - (1 << 64) if value & _SIGN else value, b""
            continue
        if kind == _BYTES:
            length, position = _read_varint(encoded, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtocolError(f"etcd sent a field of the unknown kind {kind}")
        if position + length > len(encoded):
            raise ProtocolError("etcd sent a message that ends in the middle of a field")
        yield tag >> 3, 0, encoded[position : position + length]
        position += length


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(encoded: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(encoded[position : position + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _UINT64, position + index + 1
    raise ProtocolError("etcd sent a number that does not end")
