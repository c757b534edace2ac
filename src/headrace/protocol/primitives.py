"""Primitive types of the Kafka protocol: a bounded reader, and small encoders.

The reader trusts no length: a count is valid only if that many elements could fit in the rest of the frame.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from uuid import UUID

from headrace.model.errors import ProtocolError

INT8 = Struct(">b")
INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")

# No client sends more than a few tagged fields; a million of them is a denial of service.
TAGS_MAX = 64
TAG_BYTES_MAX = 64 * 1024

EMPTY_TAGS = b"\x00"


class Reader:
    """Reads one request sequentially. Every method stays within the frame or raises ProtocolError."""

    __slots__ = ("_buffer", "_end", "flexible", "position")

    def __init__(self, buffer: memoryview, position: int = 0, *, flexible: bool = False) -> None:
        self._buffer = buffer
        self._end = len(buffer)
        self.position = position
        self.flexible = flexible

    @property
    def whole(self) -> memoryview:
        """Returns all bytes of the reader, from the beginning."""
        return self._buffer

    @property
    def remaining(self) -> int:
        return self._end - self.position

    def _number(self, kind: Struct) -> int:
        try:
            value: int = kind.unpack_from(self._buffer, self.position)[0]
        except StructError:
            raise ProtocolError("the request ends in the middle of a number") from None
        self.position += kind.size
        return value

    def numbers(self, layout: Struct) -> tuple[int, ...]:
        """Reads several adjacent numbers at the cost of one."""
        try:
            values = layout.unpack_from(self._buffer, self.position)
        except StructError:
            raise ProtocolError("the request ends in the middle of a number") from None
        self.position += layout.size
        return values

    def int8(self) -> int:
        return self._number(INT8)

    def int16(self) -> int:
        # Inline like `int32`: every string of an older version begins with one.
        try:
            value: int = INT16.unpack_from(self._buffer, self.position)[0]
        except StructError:
            raise ProtocolError("the request ends in the middle of a number") from None
        self.position += 2
        return value

    def int32(self) -> int:
        # Inline, because every request has a dozen of them.
        try:
            value: int = INT32.unpack_from(self._buffer, self.position)[0]
        except StructError:
            raise ProtocolError("the request ends in the middle of a number") from None
        self.position += 4
        return value

    def int64(self) -> int:
        return self._number(INT64)

    def boolean(self) -> bool:
        return self._number(INT8) != 0

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            if self.position >= self._end:
                raise ProtocolError("the request ends in the middle of a varint")
            byte = self._buffer[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise ProtocolError("a varint of more than five bytes")

    def take(self, length: int) -> memoryview:
        start = self.position
        if length < 0 or length > self._end - start:
            raise ProtocolError(f"{length} bytes announced, {self._end - start} left in the request")
        self.position = start + length
        return self._buffer[start : start + length]

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.take(16)))

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        start = self.position
        if length < 0 or length > self._end - start:
            raise ProtocolError(f"{length} bytes announced, {self._end - start} left in the request")
        self.position = start + length
        try:
            return str(self._buffer[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("a string that is not UTF-8") from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("null where a string must be")
        return text

    def nullable_bytes(self) -> memoryview | None:
        length = self.uvarint() - 1 if self.flexible else self.int32()
        return None if length == -1 else self.take(length)

    def nullable_array(self, element_bytes_min: int) -> range | None:
        """Returns the indexes of an array; None for a null array. `element_bytes_min` bounds the count."""
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count == -1:
            return None
        if count < 0 or count * element_bytes_min > self.remaining:
            raise ProtocolError(f"{count} elements announced, {self.remaining} bytes left in the request")
        return range(count)

    def array(self, element_bytes_min: int) -> range:
        indexes = self.nullable_array(element_bytes_min)
        if indexes is None:
            raise ProtocolError("null where an array must be")
        return indexes

    def tags(self) -> Iterator[tuple[int, "Reader"]]:
        """Yields each tagged field with a reader of its bytes. Yields nothing if the version has no tagged fields."""
        if not self.flexible:
            return
        count = self.uvarint()
        if count > TAGS_MAX:
            raise ProtocolError(f"{count} tagged fields; at most {TAGS_MAX} are read")
        for _ in range(count):
            tag, size = self.uvarint(), self.uvarint()
            if size > TAG_BYTES_MAX:
                raise ProtocolError(f"a tagged field of {size} bytes; at most {TAG_BYTES_MAX} are read")
            yield tag, Reader(self.take(size), flexible=True)

    def skip_tags(self) -> None:
        if not self.flexible:
            return
        if self.position < self._end and self._buffer[self.position] == 0:
            self.position += 1  # by far the most common case
            return
        for _ in self.tags():
            pass

    def expect_end(self) -> None:
        if self.position != self._end:
            raise ProtocolError(f"{self.remaining} bytes left over after the request")


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string(text: str, flexible: bool) -> bytes:
    encoded = text.encode()
    prefix = uvarint(len(encoded) + 1) if flexible else INT16.pack(len(encoded))
    return prefix + encoded


def nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    return string(text, flexible)


def array_length(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else INT32.pack(count)


def bytes_length(count: int, flexible: bool) -> bytes:
    """Returns the prefix of a bytes or records field that is not null."""
    return array_length(count, flexible)
