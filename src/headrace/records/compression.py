"""Compresses and decompresses record sections: Kafka's framing of each codec, with a limit on the output.

Batches come from untrusted clients, so that no length in the data is trusted: the output grows as it is produced and
ends at a fixed limit. The libraries are imported with the first batch that needs them, because most brokers never
decompress one. Independent of the format of records.
"""

from collections.abc import Iterator
from enum import IntEnum

from headrace.model.errors import CorruptBatch, MessageTooLarge, UnsupportedCompression

Buffer = bytes | bytearray | memoryview

MIB = 1024 * 1024

# A compressed batch may use no more memory than an uncompressed one could: as Kafka's socket.request.max.bytes, the
# limit of a request.
DECOMPRESSED_BYTES_MAX = 100 * MIB

# gzip can reach 1032 : 1, lz4 255 : 1, snappy 21 : 1, so that legitimate data of those is never rejected. Only zstd can
# go far beyond (32,768 : 1); there a larger output is treated as a decompression bomb.
RATIO_MAX = 1_100

# The ratio is not checked below this size. One record of a few MiB of zeros is legal and zstd compresses it 10,000 : 1;
# decompressing to 16 MiB takes about 10 ms, too little for a denial of service.
RATIO_FREE_BYTES = 16 * MIB

_GZIP_WBITS = 31  # zlib's value for a gzip wrapper around a 32 KiB window

# The first piece that is passed to a gzip member. Pieces double, so that what a member leaves unread, which zlib
# copies, never exceeds what it has consumed: a batch of a million tiny members takes linear time.
_GZIP_FIRST_FEED_BYTES = 256

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2  # version, lowest compatible version
_XERIAL_BLOCK_BYTES = 32 * 1024  # block size of snappy-java's stream, which every client reads

# The densest snappy element is a copy: 3 bytes that expand to 64.
_SNAPPY_COPY_BYTES = 3
_SNAPPY_COPY_MEANS = 64

_LZ4_RATIO_MAX = 255  # a match length grows by 255 per byte
_LZ4_KAFKA_DEFAULT_LEVEL = 9  # in Kafka's configs this number selects the fast compressor

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_FRAME_HEADER_BYTES_MAX = 18
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024  # the format's limit for the content of one block
_ZSTD_RLE_BLOCK = 1
_ZSTD_CHECKSUM_BYTES = 4


class Codec(IntEnum):
    """The three low bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(codec: int, data: Buffer, *, bytes_max: int, ratio_max: int = RATIO_MAX) -> bytes:
    """Decompresses `data`. Raises CorruptBatch if it is corrupt, MessageTooLarge if the output exceeds the limit."""
    view = memoryview(data)
    limit = decompressed_bytes_limit(len(view), bytes_max=bytes_max, ratio_max=ratio_max)
    match codec:
        case Codec.NONE:
            plain = bytes(view) if len(view) <= limit else _too_large(limit)
        case Codec.GZIP:
            plain = _gunzip(view, limit)
        case Codec.SNAPPY:
            plain = _unsnap(view, limit)
        case Codec.LZ4:
            plain = _unlz4(view, limit)
        case Codec.ZSTD:
            plain = _unzstd(view, limit)
        case _:
            raise UnsupportedCompression(f"there is no compression codec {codec}")
    return plain


def decompressed_bytes_limit(
    compressed_bytes: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX, ratio_max: int = RATIO_MAX
) -> int:
    """Returns the largest output that `decompress` returns for an input of this size."""
    return min(bytes_max, max(RATIO_FREE_BYTES, ratio_max * compressed_bytes))


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compresses `data` in Kafka's framing. `level` is the value of Kafka's compression.<codec>.level."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            import zlib

            return zlib.compress(data, -1 if level is None else level, wbits=_GZIP_WBITS)
        case Codec.SNAPPY:
            return _snap(memoryview(data))
        case Codec.LZ4:
            return _lz4(data, level)
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)
        case _:
            raise UnsupportedCompression(f"there is no compression codec {codec}")


def _too_large(limit: int) -> bytes:
    raise MessageTooLarge(f"the batch decompresses to more than {limit} bytes")


def _gunzip(data: memoryview, limit: int) -> bytes:
    """Decompresses one or more gzip members, back to back, as Java's reader does."""
    import zlib

    plain = bytearray()
    position, size = 0, len(data)
    while True:
        member = zlib.decompressobj(wbits=_GZIP_WBITS)
        feed_bytes = _GZIP_FIRST_FEED_BYTES
        while not member.eof:
            piece = data[position : position + feed_bytes]
            if not piece:
                raise CorruptBatch("the gzip data of the batch is truncated")
            try:
                plain += member.decompress(piece, limit + 1 - len(plain))
            except zlib.error as error:
                raise CorruptBatch(f"the gzip data of the batch is corrupt: {error}") from None
            if len(plain) > limit:
                return _too_large(limit)
            position += len(piece)
            feed_bytes *= 2
        position -= len(member.unused_data)
        if position == size:
            return bytes(plain)


def _unsnap(data: memoryview, limit: int) -> bytes:
    """Decompresses the xerial stream that Java, and so every client, writes; or one bare snappy block."""
    from cramjam import DecompressionError, snappy

    plain = bytearray()
    blocks = _xerial_blocks(data) if data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else iter((data,))
    try:
        for block in blocks:
            claimed = snappy.decompress_raw_len(block)
            if len(plain) + claimed > limit:
                return _too_large(limit)
            if claimed * _SNAPPY_COPY_BYTES > len(block) * _SNAPPY_COPY_MEANS:
                raise CorruptBatch(f"{len(block)} bytes of snappy cannot hold the {claimed} that they claim")
            plain += snappy.decompress_raw(block)
    except DecompressionError as error:
        raise CorruptBatch(f"the snappy data of the batch is corrupt: {error}") from None
    return bytes(plain)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position, size = len(_XERIAL_HEADER), len(data)
    if size < position:
        raise CorruptBatch("the snappy stream of the batch ends inside its header")
    while position < size:
        start = position + 4
        position = start + int.from_bytes(data[position:start], "big")
        if start > size or position > size:
            raise CorruptBatch("the snappy stream of the batch ends inside a block")
        yield data[start:position]


def _snap(data: memoryview) -> bytes:
    from cramjam import snappy

    framed = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES])
        framed += len(block).to_bytes(4, "big")
        framed += block
    return bytes(framed)


def _unlz4(data: memoryview, limit: int) -> bytes:
    """Decompresses exactly one LZ4 frame: Java's reader stops at its end, and would lose any data after it."""
    from lz4.frame import LZ4FrameDecompressor

    frame = LZ4FrameDecompressor()
    # The library allocates its maximum output, so the limit never exceeds what the input could yield.
    room = min(limit, _LZ4_RATIO_MAX * len(data)) + 1
    try:
        plain: bytes = frame.decompress(data, max_length=room)
    except RuntimeError as error:
        raise CorruptBatch(f"the lz4 data of the batch is corrupt: {error}") from None
    if len(plain) > limit:
        return _too_large(limit)
    if not frame.eof:
        raise CorruptBatch("the lz4 frame of the batch is truncated")
    if frame.unused_data:
        raise CorruptBatch("bytes follow the lz4 frame of the batch")
    return plain


def _lz4(data: Buffer, level: int | None) -> bytes:
    from lz4 import frame

    framed: bytes = frame.compress(
        data,
        compression_level=0 if level in (None, _LZ4_KAFKA_DEFAULT_LEVEL) else level,
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,  # Java's reader rejects blocks that refer to earlier ones
        store_size=False,
    )
    return framed


def _unzstd(data: memoryview, limit: int) -> bytes:
    """Decompresses one or more zstd frames; most have no content size."""
    from zstandard import ZstdDecompressor, ZstdError

    try:
        room = min(limit, _zstd_bytes_bound(data)) + 1
        # The library rejects windows above 128 MiB, and memory for a window is used only as it is filled.
        plain = ZstdDecompressor().stream_reader(data, read_across_frames=True).read(room)
    except ZstdError as error:
        raise CorruptBatch(f"the zstd data of the batch is corrupt: {error}") from None
    return plain if len(plain) <= limit else _too_large(limit)


def _zstd_bytes_bound(data: memoryview) -> int:
    """Returns the maximum output of these frames, by their block headers alone.

    Raises CorruptBatch for a truncated frame.

    The library's bounded reader treats a truncated frame as a complete one; this scan of the block headers detects
    it.
    """
    from zstandard import frame_header_size, get_frame_parameters

    position, size, blocks = 0, len(data), 0
    while position < size or not blocks:
        start = data[position : position + _ZSTD_FRAME_HEADER_BYTES_MAX]
        if start[: len(_ZSTD_MAGIC)] != _ZSTD_MAGIC:
            raise CorruptBatch(f"no zstd frame begins at byte {position} of the records")
        has_checksum = get_frame_parameters(start).has_checksum
        position += frame_header_size(start)
        is_last = False
        while not is_last:
            block_header = int.from_bytes(data[position : position + 3], "little")
            is_last, kind, block_bytes = bool(block_header & 1), block_header >> 1 & 3, block_header >> 3
            position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else block_bytes)
            blocks += 1
            if position > size:
                raise CorruptBatch("the zstd data of the batch is truncated")
        position += _ZSTD_CHECKSUM_BYTES if has_checksum else 0
        if position > size:
            raise CorruptBatch("the zstd checksum of the batch is truncated")
    return blocks * _ZSTD_BLOCK_BYTES_MAX
