"""Atheris on everything that reads a batch from a stranger: only the promised errors may come out.

    python tests/fuzz/fuzz_batch.py TARGET [CORPUS_DIR] [-runs=N] [-seed=N] …

TARGET is one of the functions below; the other arguments go to libFuzzer.
"""

import sys
from collections.abc import Callable
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["headrace"]):
    from headrace.model.errors import (
        CorruptBatch,
        InvalidRecord,
        MessageTooLarge,
        UnsupportedCompression,
        UnsupportedMessageFormat,
    )
    from headrace.records.batch import BatchHeader, parse_header, produced_batch, walk
    from headrace.records.batch_queries import first_at_or_after, key_errors, max_timestamp_record
    from headrace.records.builder import recompress, sealed
    from headrace.records.compaction_filter import filter_batch
    from headrace.records.compression import MIB, Codec, decompress
    from headrace.records.control import read_marker
    from headrace.records.record import decode_records, record_spans

PROMISED = (CorruptBatch, MessageTooLarge, UnsupportedCompression)
BYTES_MAX = MIB


def produce(data: bytes) -> None:
    """The bytes that a Produce holds for a partition, and a buffer of several batches."""
    try:
        header = produced_batch(memoryview(data))
        assert header.total_bytes == len(data)
    except (CorruptBatch, InvalidRecord, UnsupportedCompression, UnsupportedMessageFormat):
        pass
    try:
        end = 0
        for position, header in walk(data):
            assert position == end, "batches stand end to end"
            end = position + header.total_bytes
        assert end <= len(data)
    except CorruptBatch:
        pass


def batch(data: bytes) -> None:
    """Any bytes as a whole batch."""
    _read_all(data)


def records(data: bytes) -> None:
    """Any bytes as the records behind a header whose length and checksum are right."""
    provider = atheris.FuzzedDataProvider(data)
    header = BatchHeader(
        base_offset=provider.ConsumeIntInRange(-1, 2**62),
        length=0,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=provider.ConsumeIntInRange(0, 0x7F),
        last_offset_delta=provider.ConsumeIntInRange(-1, 300),
        base_timestamp=provider.ConsumeInt(8),
        max_timestamp=provider.ConsumeInt(8),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=provider.ConsumeIntInRange(-1, 100),
    )
    _read_all(sealed(header, provider.ConsumeBytes(sys.maxsize)))


def compressed(data: bytes) -> None:
    """Any bytes as compressed data, the first of them choosing the codec."""
    if data:
        try:
            plain = decompress(data[0] % 6, data[1:], bytes_max=BYTES_MAX)
            assert len(plain) <= BYTES_MAX
        except PROMISED:
            pass


def _read_all(data: bytes) -> None:
    readers: tuple[Callable[[], object], ...] = (
        lambda: decode_records(data, bytes_max=BYTES_MAX),
        lambda: list(record_spans(data, bytes_max=BYTES_MAX)),
        lambda: key_errors(data, bytes_max=BYTES_MAX),
        lambda: first_at_or_after(data, None, 1_000, bytes_max=BYTES_MAX),
        lambda: max_timestamp_record(data, bytes_max=BYTES_MAX),
        lambda: read_marker(data),
        lambda: recompress(data, None, Codec.NONE, bytes_max=BYTES_MAX),
    )
    for read in readers:
        with suppress(*PROMISED):
            read()
    _compact(data)


def _compact(data: bytes) -> None:
    try:
        kept = filter_batch(
            data,
            None,
            lambda offset, key, is_tombstone: is_tombstone or offset % 3 != 0,
            delete_horizon_ms=1_700_000_000_000,
            keep_empty=True,
            bytes_max=BYTES_MAX,
        )
    except PROMISED:
        return
    assert kept is not None
    before, after = parse_header(data), parse_header(kept)
    assert (after.base_offset, after.last_offset) == (before.base_offset, before.last_offset)
    spans = list(record_spans(kept, bytes_max=2 * BYTES_MAX))
    assert len(spans) == after.record_count, "what compaction writes can be read again"


TARGETS = {target.__name__: target for target in (produce, batch, records, compressed)}


def main() -> None:
    arguments = [sys.argv[0], *sys.argv[2:]]
    atheris.Setup(arguments, TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
