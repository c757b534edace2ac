"""What a read_committed reader is shown."""

from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.records.transaction_filter import committed_batches


def data(offset: int, producer_id: int, *, transactional: bool = True) -> bytes:
    return build_batch(
        [NewRecord(1, None, b"v")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    return build_marker_batch(
        EndMarker(kind, 0), producer_id=producer_id, producer_epoch=0, timestamp=1, base_offset=offset
    )


LOG = [
    data(0, 1),
    data(1, 2),
    data(2, 3, transactional=False),
    marker(3, 1, ControlType.ABORT),
    data(4, 1),
    marker(5, 2, ControlType.COMMIT),
    marker(6, 1, ControlType.COMMIT),
    data(7, 2),
    marker(8, 2, ControlType.ABORT),
    data(9, 2),
]


def visible(aborted) -> list[int]:
    batches = [(memoryview(batch), parse_header(batch)) for batch in LOG]
    return [header.base_offset for _, header in committed_batches(batches, aborted)]


def test_an_aborted_transaction_is_hidden_until_its_marker():
    assert visible([(2, 7), (1, 0)]) == [1, 2, 4, 9]


def test_read_uncommitted_hides_only_markers():
    assert visible(None) == [0, 1, 2, 4, 7, 9]


def test_batches_that_compaction_emptied_are_no_rows():
    batch = build_batch([NewRecord(1, None, b"v")])
    header = parse_header(batch)._replace(record_count=0)
    assert list(committed_batches([(memoryview(batch), header)], None)) == []
