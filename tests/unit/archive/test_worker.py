"""What one archive's trouble is to the rounds over all of them."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import OperationalError

from headrace.archive import settings as reading_settings
from headrace.archive import worker as running
from headrace.archive.decode import ValueSchema
from headrace.archive.settings import ArchiveSettings
from headrace.archive.worker import ArchiveWorker, NotDecoded, PassResult, decoded
from headrace.client.sync.client import ClientConfig, TopicView
from headrace.formats.arrow_columns import Field, Struct
from headrace.formats.row_decoder import RowDecoder
from headrace.formats.scalar_columns import plain
from headrace.model.ids import TopicPartition

TOPIC_ID = UUID(int=7)


class EmptyCluster:
    """Its topics have no partitions, so that their archives are all that is asked."""

    settings = ClientConfig(bootstrap="nowhere:1")

    def topics(self, names: Sequence[str]) -> dict[str, TopicView]:
        return {name: TopicView(name, TOPIC_ID, {}) for name in names}

    def by_leader(self, partitions: Collection[TopicPartition]) -> dict[str, list[TopicPartition]]:
        assert not partitions
        return {}

    def patiently(self, what: str, ask: Callable[[], Any]) -> Any:
        return ask()


def test_an_archive_whose_catalog_failed_is_visited_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archives = [
        ArchiveSettings(name, str(TOPIC_ID), "iceberg", str(tmp_path / name), None, False, {}) for name in ("a", "b")
    ]
    monkeypatch.setattr(running, "archived_topics", lambda cluster: archives)
    visited: list[str] = []

    def tell(settings: ArchiveSettings, done: PassResult) -> None:
        visited.append(settings.topic)

    create_tables = SqlCatalog.create_tables

    def locked(catalog: SqlCatalog) -> None:
        if "/a/" in catalog.properties["uri"]:
            raise OperationalError("create table", {}, Exception("database is locked"))
        create_tables(catalog)

    archive_runner = ArchiveWorker(EmptyCluster(), tell=tell)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(SqlCatalog, "create_tables", locked)
        archive_runner.visit_all()
    assert visited == ["b"]
    archive_runner.visit_all()
    assert visited == ["b", "a", "b"]


def test_unexpected_error_of_one_topic_leaves_others_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archives = [
        ArchiveSettings(name, str(TOPIC_ID), "iceberg", str(tmp_path / name), None, False, {}) for name in ("a", "b")
    ]
    monkeypatch.setattr(running, "archived_topics", lambda cluster: archives)
    visited: list[str] = []

    def tell(settings: ArchiveSettings, done: PassResult) -> None:
        if settings.topic == "a":
            raise RecursionError("maximum recursion depth exceeded")
        visited.append(settings.topic)

    archive_runner = ArchiveWorker(EmptyCluster(), tell=tell)
    archive_runner.visit_all()
    assert visited == ["b"]
    assert [archive_runner.try_to_catch_up(one) is None for one in archives] == [True, False]
    assert "a is not archived" in caplog.text


def test_unusable_config_of_one_topic_leaves_others_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(cluster: EmptyCluster, topic: TopicView) -> ArchiveSettings:
        schema = "xml:what" if topic.name == "a" else ""
        decoding = ValueSchema.parse(schema)
        return ArchiveSettings(topic.name, str(TOPIC_ID), "delta", str(tmp_path / topic.name), decoding, False, {})

    monkeypatch.setattr(reading_settings, "read_settings", read)
    visited: list[str] = []
    archive_runner = ArchiveWorker(
        EmptyCluster(), ["a", "b"], tell=lambda settings, done: visited.append(settings.topic)
    )
    archive_runner.visit_all()
    assert visited == ["b"]
    assert "a is not archived, its configs cannot be used: archive.schema: 'xml:what'" in caplog.text


def test_error_of_the_decoder_names_partition_and_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(value: bytes) -> dict[str, int]:
        if value == b"poison":
            raise RuntimeError("a defect")
        return {"id": int(value)}

    decoder = RowDecoder(read, Struct([Field("id", plain(pa.int64(), int))]))
    monkeypatch.setattr(ValueSchema, "decoder", lambda decoding: decoder)
    values = pa.array([b"1", b"2", b"poison", b"4"], pa.binary())
    batch = pa.RecordBatch.from_pydict({"offset": pa.array([7, 8, 12, 13], pa.int64()), "value": values})
    partition = TopicPartition("orders", 3)
    with pytest.raises(NotDecoded, match="orders-3: the record at offset 12 cannot be decoded: RuntimeError a defect"):
        decoded(batch, partition, ValueSchema("json", "id bigint"))
    assert decoded(batch.slice(0, 2), partition, ValueSchema("json", "id bigint")).column("id").to_pylist() == [1, 2]
