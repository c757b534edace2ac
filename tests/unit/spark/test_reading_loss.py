"""Offsets that a Spark reader finds beyond the high watermark: lost, or about to be committed by a new leader."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from headrace.client.blocking.cluster import ClientSettings, Cluster, Patience
from headrace.client.blocking.fetching import OffsetOutOfRange
from headrace.model.ids import TopicPartition
from headrace.spark import reading
from headrace.spark.planning import OffsetRange
from headrace.spark.reading import DataLost

PARTITION = TopicPartition("t", 0)


def after_loss(monkeypatch: pytest.MonkeyPatch, edges: tuple[int, int], position: int, fails: bool) -> int:
    monkeypatch.setattr(reading, "_edges", lambda *_: edges)
    plan: Any = SimpleNamespace(fail_on_data_loss=fails)
    wanted = OffsetRange(PARTITION, 0, 50)
    outside = OffsetOutOfRange(PARTITION, position, *edges)
    cluster = Cluster(ClientSettings(bootstrap="localhost:1"))
    return reading._after_loss(plan, cluster, wanted, outside, Patience(60.0))


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
        with pytest.raises(DataLost):
            after_loss(monkeypatch, edges, 20, fails=True)
