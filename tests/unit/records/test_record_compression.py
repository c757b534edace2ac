"""Codecs: Kafka's framing is kept, damage is CorruptBatch, and nothing grows past its limit."""

import gzip
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from headrace.model.errors import CorruptBatch, MessageTooLarge, UnsupportedCompression
from headrace.records.compression import (
    MIB,
    RATIO_FREE_BYTES,
    RATIO_MAX,
    Codec,
    compress,
    decompress,
)

REAL_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b'{"order": %d, "city": "Basel", "amount": %d}' % (n, n * 7919 % 1000) for n in range(4_000))
XERIAL_HEADER = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
ROOM = 4 * MIB


def zstd_zeros(size: int) -> bytes:
    """Zeros with no content size in the frame, as a stream of unknown length has it."""
    stream = zstandard.ZstdCompressor().compressobj()
    pieces = [stream.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join(pieces) + stream.flush()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("plain", [b"", b"a", TEXT, bytes(200_000)], ids=["empty", "byte", "text", "zeros"])
def test_what_was_compressed_comes_back(codec: Codec, plain: bytes):
    assert decompress(codec, compress(codec, plain), bytes_max=ROOM) == plain


def test_a_xerial_stream_without_blocks_is_empty():
    assert compress(Codec.SNAPPY, b"") == XERIAL_HEADER
    assert decompress(Codec.SNAPPY, XERIAL_HEADER, bytes_max=ROOM) == b""


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(codec: Codec, kind: type):
    assert decompress(codec, kind(compress(codec, kind(TEXT))), bytes_max=ROOM) == TEXT


@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 9), (Codec.LZ4, 9), (Codec.LZ4, 12), (Codec.ZSTD, 10), (Codec.ZSTD, -5)]
)
def test_levels_are_those_of_kafkas_configs(codec: Codec, level: int):
    assert decompress(codec, compress(codec, TEXT, level), bytes_max=ROOM) == TEXT


def test_lz4_level_9_is_kafkas_word_for_the_fast_compressor():
    assert compress(Codec.LZ4, TEXT, 9) == compress(Codec.LZ4, TEXT)


def test_rule_31_lz4_frames_have_the_independent_64_kib_blocks_that_java_reads():
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))
    assert (info["block_linked"], info["block_size"], info["content_size"]) == (False, 65_536, 0)


def test_rule_31_snappy_is_written_as_a_xerial_stream_of_32_kib_blocks():
    framed = compress(Codec.SNAPPY, TEXT)
    assert framed.startswith(XERIAL_HEADER)
    first_bytes = int.from_bytes(framed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + first_bytes])) == TEXT[: 32 * 1024]


def test_rule_31_bare_snappy_is_read_too():
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), bytes_max=ROOM) == TEXT


def test_rule_31_zstd_without_a_content_size_is_read():
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frame = stream.compress(TEXT) + stream.flush()
    assert zstandard.frame_content_size(frame) == -1
    assert decompress(Codec.ZSTD, frame, bytes_max=ROOM) == TEXT


def test_zstd_with_a_checksum_is_read_and_checked():
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
    assert decompress(Codec.ZSTD, frame, bytes_max=ROOM) == TEXT
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, frame[:-1] + bytes((frame[-1] ^ 1,)), bytes_max=ROOM)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_frames_back_to_back_are_one_stream(codec: Codec):
    data = compress(codec, TEXT) + compress(codec, b"") + compress(codec, b"end")
    assert decompress(codec, data, bytes_max=ROOM) == TEXT + b"end"


def test_bytes_behind_an_lz4_frame_are_corrupt_since_java_would_not_see_them():
    with pytest.raises(CorruptBatch):
        decompress(Codec.LZ4, compress(Codec.LZ4, TEXT) * 2, bytes_max=ROOM)


def test_a_zstd_window_of_the_highest_level_is_read():
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(TEXT) + stream.flush()
    assert decompress(Codec.ZSTD, frame, bytes_max=ROOM) == TEXT


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_every_truncation_is_corrupt(codec: Codec):
    data = compress(codec, TEXT[:500])
    for size in range(len(data)):
        if codec is Codec.SNAPPY and size == len(XERIAL_HEADER):
            continue  # a stream of no blocks
        with pytest.raises(CorruptBatch):
            decompress(codec, data[:size], bytes_max=ROOM)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_trailing_garbage_is_corrupt(codec: Codec):
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, TEXT) + b"garbage", bytes_max=ROOM)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_other_bytes_are_corrupt(codec: Codec):
    for data in (b"\xff" * 40, b"\x00" * 40, TEXT[:100]):
        with pytest.raises(CorruptBatch):
            decompress(codec, data, bytes_max=ROOM)


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_a_codec_that_no_one_knows_is_unsupported(codec: int):
    with pytest.raises(UnsupportedCompression):
        decompress(codec, b"", bytes_max=ROOM)
    with pytest.raises(UnsupportedCompression):
        compress(codec, b"")


@pytest.mark.parametrize("codec", list(Codec))
def test_the_hard_cap_is_exact(codec: Codec):
    data = compress(codec, TEXT)
    assert decompress(codec, data, bytes_max=len(TEXT)) == TEXT
    with pytest.raises(MessageTooLarge):
        decompress(codec, data, bytes_max=len(TEXT) - 1)


def test_the_ratio_caps_what_the_hard_cap_would_let_through():
    bomb = zstd_zeros(2 * RATIO_FREE_BYTES)
    assert len(bomb) * RATIO_MAX < RATIO_FREE_BYTES
    with pytest.raises(MessageTooLarge):
        decompress(Codec.ZSTD, bomb, bytes_max=100 * MIB)
    assert len(decompress(Codec.ZSTD, bomb, bytes_max=100 * MIB, ratio_max=100_000)) == 2 * RATIO_FREE_BYTES


def test_one_record_of_zeros_is_no_bomb():
    zeros = zstd_zeros(8 * MIB)
    assert len(decompress(Codec.ZSTD, zeros, bytes_max=100 * MIB)) == 8 * MIB


def bombs() -> dict[str, tuple[Codec, bytes]]:
    zeros = bytes(8 * MIB)
    return {
        "gzip": (Codec.GZIP, zlib.compress(zeros, 9, wbits=31)),
        "gzip members": (Codec.GZIP, gzip.compress(bytes(MIB)) * 8),
        "snappy": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(zeros))),
        "xerial": (Codec.SNAPPY, compress(Codec.SNAPPY, zeros)),
        "lz4": (Codec.LZ4, compress(Codec.LZ4, zeros)),
        "zstd": (Codec.ZSTD, zstd_zeros(8 * MIB)),
        "zstd with its size": (Codec.ZSTD, compress(Codec.ZSTD, zeros)),
        "zstd frames": (Codec.ZSTD, compress(Codec.ZSTD, bytes(MIB)) * 8),
    }


@pytest.mark.parametrize("name", list(bombs()))
def test_a_bomb_is_refused_before_it_has_cost_more_than_the_cap(name: str):
    codec, bomb = bombs()[name]
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge):
            decompress(codec, bomb, bytes_max=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIB + len(bomb)


def test_a_snappy_block_cannot_claim_more_than_its_bytes_can_mean():
    claim = bytes((0x80, 0x80, 0x80, 0x08))  # 16 MiB, and then nothing
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(Codec.SNAPPY, claim + b"\x00a", bytes_max=100 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_a_zstd_frame_cannot_claim_more_than_its_blocks_can_hold():
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(70_000)))
    at = 5 + (0 if frame[4] & 0x20 else 1)
    frame[at : at + 4] = (0x7FFF_FFFF).to_bytes(4, "little")
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, frame, bytes_max=100 * MIB)


def test_many_tiny_gzip_members_cost_linear_time():
    members = gzip.compress(b"", mtime=0) * 20_000
    assert decompress(Codec.GZIP, members, bytes_max=ROOM) == b""
