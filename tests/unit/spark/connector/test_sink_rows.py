"""Rows on their way into batches: gathered, and none lost, doubled or moved."""

import pytest

pa = pytest.importorskip("pyarrow")

from headrace.model.errors import InvalidConfig  # noqa: E402
from headrace.model.ids import TopicPartition  # noqa: E402
from headrace.spark.connector.sink_rows import chunks, gathered, record_columns  # noqa: E402
from headrace.spark.connector.task_writer import requests  # noqa: E402


def rows(*values: bytes) -> object:
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


def values_of(batches: list) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_small_batches_are_gathered_in_their_order() -> None:
    given = [rows(b"%03d" % number, b"x" * number) for number in range(50)]
    found = list(gathered(given, bytes_max=300))
    assert values_of(found) == values_of(given)
    assert all(batch.nbytes <= 300 for batch in found)
    assert len(found) < len(given) / 4


def test_a_batch_that_is_larger_by_itself_is_left_whole() -> None:
    given = [rows(b"a"), rows(b"x" * 1000), rows(b"b"), rows(b"c")]
    assert [batch.num_rows for batch in gathered(given, bytes_max=100)] == [1, 1, 2]


def test_empty_batches_are_left_out() -> None:
    assert list(gathered([rows(), rows()])) == []
    assert values_of(list(gathered([rows(), rows(b"a"), rows()]))) == [b"a"]


def test_a_row_that_no_request_may_hold_is_refused() -> None:
    columns = record_columns(rows(b"a", b"x" * 500, b"b"), 0)
    assert [len(piece.values) for piece in chunks(columns, 100)] == [1, 1, 1]
    assert [len(piece.values) for piece in chunks(columns, 600, 600)] == [3]
    with pytest.raises(InvalidConfig, match=r"kafka\.max\.request\.size: a row of 5\d\d bytes is larger than 100"):
        list(chunks(columns, 100, 100))


def test_batches_go_together_as_far_as_they_fit() -> None:
    batches = {TopicPartition("t", number): bytes(size) for number, size in enumerate((40, 60, 1, 300, 50))}
    sizes = [[len(batch) for batch in request.values()] for request in requests(batches, 100)]
    assert sizes == [[40, 60], [1], [300], [50]]
    assert list(requests(batches, None)) == [batches]
    assert list(requests({}, 100)) == []
