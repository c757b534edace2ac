"""What one archive's trouble is to the rounds over all of them."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import OperationalError

from headrace.client.blocking.cluster import ClientSettings, TopicView
from headrace.model.ids import TopicPartition
from headrace.spark.archive import runner as running
from headrace.spark.archive.archiver import Round
from headrace.spark.archive.runner import Runner
from headrace.spark.archive.settings import ArchiveSettings

TOPIC_ID = UUID(int=7)


class EmptyCluster:
    """Its topics have no partitions, so that their archives are all that is asked."""

    settings = ClientSettings(bootstrap="nowhere:1")

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

    def tell(settings: ArchiveSettings, done: Round) -> None:
        visited.append(settings.topic)

    create_tables = SqlCatalog.create_tables

    def locked(catalog: SqlCatalog) -> None:
        if "/a/" in catalog.properties["uri"]:
            raise OperationalError("create table", {}, Exception("database is locked"))
        create_tables(catalog)

    archive_runner = Runner(EmptyCluster(), tell=tell)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(SqlCatalog, "create_tables", locked)
        archive_runner.visit_all()
    assert visited == ["b"]
    archive_runner.visit_all()
    assert visited == ["b", "a", "b"]
