"""Offsets that a Spark reader finds beyond the high watermark: lost, or about to be committed by a new leader."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from headrace.archive.decode import RAW
from headrace.client.core.errors import KafkaApiError
from headrace.client.reader import arrow_reader
from headrace.client.reader.arrow_reader import DataLossError, ReadSpec, TopicGone, read_range, until_gone
from headrace.client.reader.offsets import OffsetRange
from headrace.client.sync.client import ClientConfig, Cluster, RetryPolicy
from headrace.client.sync.fetcher import FETCH_BYTES, Fetched, OffsetOutOfRange
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch

PARTITION = TopicPartition("t", 0)


def after_loss(monkeypatch: pytest.MonkeyPatch, edges: tuple[int, int], position: int, fails: bool) -> int:
    monkeypatch.setattr(arrow_reader, "_edges", lambda *_: edges)
    plan: Any = SimpleNamespace(fail_on_data_loss=fails)
    wanted = OffsetRange(PARTITION, 0, 50)
    outside = OffsetOutOfRange(PARTITION, position, *edges)
    cluster = Cluster(ClientConfig(bootstrap="localhost:1"))
    return arrow_reader._after_loss(plan, cluster, wanted, outside, RetryPolicy(60.0))


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("edges", [(0, 50), (20, 50), (0, 20)])
def test_position_inside_the_log_is_no_data_loss(
    monkeypatch: pytest.MonkeyPatch, edges: tuple[int, int], fails: bool
) -> None:
    """The end is inside too: the next record comes there, or is there and not committed yet."""
    assert after_loss(monkeypatch, edges, 20, fails) == 20


def test_offsets_outside_the_log_are_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    assert after_loss(monkeypatch, (30, 50), 20, fails=False) == 30
    assert after_loss(monkeypatch, (0, 19), 20, fails=False) == 50
    for edges in ((30, 50), (0, 19)):
        with pytest.raises(DataLossError):
            after_loss(monkeypatch, edges, 20, fails=True)


def rows_read(monkeypatch: pytest.MonkeyPatch, refusals: int, *, fails: bool) -> Iterator[Any]:
    """Of a topic of ten records, five in a fetch, that brokers do not know behind the first fetch, so many times."""
    refused = iter([KafkaApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no partition t-0")] * refusals)

    def fetches(_cluster: object, _partition: object, position: int, end: int, **_: object) -> Iterator[Fetched]:
        while position < end:
            refusal = next(refused, None) if position else None
            if refusal is not None:
                raise refusal
            records = [NewRecord(0, None, b"%d" % number) for number in range(position, position + 5)]
            batch = build_batch(records, base_offset=position)
            ((_, header),) = walk(batch)
            yield Fetched(position, position + 5, [(memoryview(batch), header)], None, 10, 10, 0)
            position += 5

    monkeypatch.setattr(arrow_reader, "fetch_from", fetches)
    settings = ClientConfig(bootstrap="localhost:1")
    return read_range(ReadSpec(settings, False, fails, FETCH_BYTES, RAW), OffsetRange(PARTITION, 0, 10))


def offsets_of(batches: Iterator[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("fails", [True, False])
def test_topic_unknown_to_a_lagging_broker_is_read_whole(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """An archive would record offsets as covered that it has not read."""
    assert offsets_of(rows_read(monkeypatch, 2, fails=fails)) == list(range(10))


def test_topic_that_stays_missing_is_never_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_reader, "MISSING_PATIENCE_S", 0.0)
    with pytest.raises(DataLossError, match="at offset 5"):
        offsets_of(rows_read(monkeypatch, 9, fails=True))
    with pytest.raises(TopicGone, match="at offset 5"):
        offsets_of(rows_read(monkeypatch, 9, fails=False))
    assert offsets_of(until_gone(rows_read(monkeypatch, 9, fails=False))) == list(range(5))
