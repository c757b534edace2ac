"""Zigzag variable-length integers, the numbers inside a record.

Seven bits per byte, lowest first; a set high bit marks that another byte follows. Zigzag maps 0, -1, 1, -2 to 0, 1,
2, 3 so that small negative numbers stay short. Reading loops decode the one-byte case inline and call
`rest_of_varint` for the others: that call would otherwise be most of the cost of reading a record.
"""

from headrace.model.errors import CorruptBatch

_INT64_BITS = 64


def unzigzag(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)


def wrap_int64(value: int) -> int:
    """Wraps as Java's long addition does. Only invalid timestamps need it, but their batches must stay readable."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _encode(raw: int) -> bytes:
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


_ONE_BYTE = tuple(bytes((raw,)) for raw in range(0x80))


def encode_varint(value: int) -> bytes:
    raw = value << 1 if value >= 0 else ~(value << 1)
    if raw < 0x80:
        return _ONE_BYTE[raw]
    if raw < 0x4000:
        return bytes((raw & 0x7F | 0x80, raw >> 7))
    return _encode(raw)


def rest_of_varint(data: bytes, position: int, first: int) -> tuple[int, int]:
    """Returns the zigzag value that begins with `first`, the byte before `position`, and the position after it.

    Raises IndexError past the end of the data; the reading loop turns it into CorruptBatch.
    """
    byte = data[position]
    position += 1
    if byte < 0x80:  # two bytes: the lengths and deltas of most records
        return first & 0x7F | byte << 7, position
    raw, shift = first & 0x7F | (byte & 0x7F) << 7, 14
    while byte > 0x7F:
        if shift >= _INT64_BITS:
            raise CorruptBatch("a number in a record is longer than ten bytes")
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    if raw >> _INT64_BITS:
        raise CorruptBatch("a number in a record does not fit in 64 bits")
    return raw, position
