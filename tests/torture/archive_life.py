"""One life of an archiver that ends by kill -9 at a step that the dice choose, or of age. Run by test_archive.py."""

import os
import signal
from collections.abc import Callable
from random import Random
from typing import Any

from headrace.archive import table, worker
from headrace.archive import worker as publishing
from headrace.archive.settings import read_settings, topic_view
from headrace.archive.worker import ArchiveWorker
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.lake import delta, iceberg, iceberg_compaction, parquet
from headrace.lake import delta as delta_upkeep
from headrace.lake.table import MaintenancePolicy

# Before and after each of these a life may end.
COMMON: tuple[tuple[Any, str], ...] = (
    (parquet.FileWriter, "write"),
    (parquet.FileWriter, "close"),
    (worker.TopicArchiver, "_show_position"),
    (publishing, "change"),
    (table.ArchiveTable, "view"),
)
STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "delta": (
        *COMMON,
        (delta.DeltaLakeTable, "add"),
        (delta_upkeep.DeltaMaintenance, "compact"),
        (delta_upkeep.DeltaMaintenance, "expire"),
    ),
    "iceberg": (
        *COMMON,
        (iceberg.IcebergLakeTable, "add"),
        (iceberg_compaction.IcebergMaintenance, "compact"),
        (iceberg_compaction.IcebergMaintenance, "expire"),
    ),
}
CALLS_MAX = 3  # how often a step goes well before the one at which the life ends


def live(bootstrap: str, topic: str, seed: int, small_files_max: int, rows_per_commit: int) -> None:
    """Archive until the topic's end is reached, or until death."""
    worker.COMMIT_ROWS = rows_per_commit
    cluster = Cluster(ClientConfig(bootstrap=bootstrap))
    settings = read_settings(cluster, topic_view(cluster, topic))
    assert settings is not None
    _die_somewhere(Random(seed), STEPS[settings.kind])
    upkeep = MaintenancePolicy(small_files_max=small_files_max, keep_s=3600)
    ArchiveWorker(cluster, upkeep=upkeep, grace_s=0).catch_up(settings)


def _die_somewhere(dice: Random, steps: tuple[tuple[Any, str], ...]) -> None:
    owner, name = dice.choice(steps)
    calls, is_before = dice.randrange(CALLS_MAX), dice.random() < 0.5
    step: Callable[..., Any] = getattr(owner, name)

    def mortal(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls -= 1
        if calls < 0 and is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = step(*given, **named)
        if calls < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, mortal)
