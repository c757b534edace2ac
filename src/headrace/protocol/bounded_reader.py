"""A reader that bounds the memory of the decoded request, not only its bytes.

A string of two letters is three bytes in the frame and sixty in memory, so that a frame of tiny elements would take
twenty times its size once decoded. This reader charges the elements of an array to a budget before they are created.
The budget exceeds what legitimate requests need.
"""

from struct import error as StructError

from headrace.model.errors import ProtocolError
from headrace.protocol.primitives import INT16 as _LENGTH
from headrace.protocol.primitives import Reader

# 10,000 topics with the longest names are 2.5 MB, and no request but Produce has nearly twice that. Decoding runs on
# the event loop at some 10 MB/s, so that this also bounds how long one untrusted client can block it.
COLD_REQUEST_BYTES_MAX = 4 * 1024 * 1024

# Memory of a decoded request, in bytes per byte of the frame. The densest request that clients send
# (OffsetForLeaderEpoch for thousands of partitions) needs 14.
MEMORY_PER_BYTE_MAX = 16
# Small requests may need more than that: a few objects are large compared to a frame of fifty bytes.
MEMORY_FLOOR = 256 * 1024

# Memory on a 64-bit CPython, rounded up to the sizes of its allocator.
POINTER_WEIGHT = 24  # a slot in the list that is being filled, with its over-allocation, and one in the final tuple
OBJECT_WEIGHT = 32  # header and garbage collector link of an object, without its fields
FIELD_WEIGHT = 8
INT_WEIGHT = 32
UUID_WEIGHT = 104
_ASCII_WEIGHT = 64  # an empty ASCII string, rounded
_WIDE_WEIGHT = 96  # the same with a character that needs four bytes: then every character takes four


# A request of this size cannot exceed MEMORY_FLOOR, whatever its content: that is 128 for each of its bytes, and the
# densest elements, topics of two bytes and strings of one, need 88.
SMALL_REQUEST_BYTES = 2 * 1024


class BoundedReader(Reader):
    """A Reader with a memory budget. Tagged fields are read by plain Readers: they are small and few."""

    __slots__ = ("_budget",)

    def __init__(self, buffer: memoryview, *, flexible: bool = False) -> None:
        super().__init__(buffer, flexible=flexible)
        self._budget = MEMORY_FLOOR + MEMORY_PER_BYTE_MAX * len(buffer)

    @classmethod
    def of_body(cls, reader: Reader) -> "BoundedReader":
        """Returns a bounded reader of the rest of `reader`: the body of a request."""
        if reader.remaining > COLD_REQUEST_BYTES_MAX:
            raise ProtocolError(f"a request of {reader.remaining} bytes; at most {COLD_REQUEST_BYTES_MAX} are read")
        if isinstance(reader, SmallReader):
            return reader
        return cls(reader.take(reader.remaining), flexible=reader.flexible)

    def charge(self, weight: int) -> None:
        """Charges objects that are about to be created. Raises ProtocolError if the budget is exceeded."""
        self._budget -= weight
        if self._budget < 0:
            raise ProtocolError("so many tiny elements that the request would outgrow its memory budget")

    def nullable_string(self) -> str | None:
        text = super().nullable_string()
        if text is not None:
            self.charge(_ASCII_WEIGHT + len(text) if text.isascii() else _WIDE_WEIGHT + 4 * len(text))
        return text

    def elements(self, element_bytes_min: int, element_weight: int) -> range:
        """As `weighed_array`, for an array that must not be null."""
        indexes = self.weighed_array(element_bytes_min, element_weight)
        if indexes is None:
            raise ProtocolError("null where an array must be")
        return indexes

    def weighed_array(self, element_bytes_min: int, element_weight: int) -> range | None:
        """As `nullable_array`; strings inside the elements are charged separately."""
        indexes = self.nullable_array(element_bytes_min)
        if indexes is not None:
            self.charge(len(indexes) * element_weight)
        return indexes


class SmallReader(BoundedReader):
    """For a body of at most SMALL_REQUEST_BYTES, which cannot exceed its budget: nothing is charged.

    Reads from a copy in bytes: slicing a string from bytes takes half the time of slicing it from a frame.
    """

    __slots__ = ()

    _buffer: bytes  # type: ignore[assignment]  # whatever reads a memoryview reads bytes

    def __init__(self, body: memoryview, *, flexible: bool) -> None:
        self._buffer = bytes(body)
        self._end = len(body)
        self.position = 0
        self.flexible = flexible

    def take(self, length: int) -> memoryview:
        start = self.position
        super().take(length)
        return memoryview(self._buffer)[start : start + length]

    def nullable_string(self) -> str | None:
        if self.flexible:
            length = self.uvarint() - 1
            start = self.position
        else:
            start = self.position
            try:
                length = _LENGTH.unpack_from(self._buffer, start)[0]
            except StructError:
                raise ProtocolError("the request ends in the middle of a number") from None
            start += 2
        if length < 0:
            if length != -1:
                raise ProtocolError(f"{length} bytes announced, {self._end - start} left in the request")
            self.position = start
            return None
        end = start + length
        if end > self._end:
            raise ProtocolError(f"{length} bytes announced, {self._end - start} left in the request")
        self.position = end
        try:
            return self._buffer[start:end].decode()
        except UnicodeDecodeError:
            raise ProtocolError("a string that is not UTF-8") from None

    def uvarint(self) -> int:
        try:
            byte = self._buffer[self.position]
        except IndexError:
            raise ProtocolError("the request ends in the middle of a varint") from None
        if byte > 0x7F:
            return super().uvarint()
        self.position += 1
        return byte

    def charge(self, weight: int) -> None:
        """Does nothing: the size of the body bounds the memory."""

    def elements(self, element_bytes_min: int, element_weight: int) -> range:
        return self.array(element_bytes_min)

    def weighed_array(self, element_bytes_min: int, element_weight: int) -> range | None:
        return self.nullable_array(element_bytes_min)


def body_reader(body: memoryview, *, flexible: bool) -> Reader:
    """Returns the reader for a request body of this size."""
    if len(body) <= SMALL_REQUEST_BYTES:
        return SmallReader(body, flexible=flexible)
    return Reader(body, flexible=flexible)
