"""Upkeep of a Delta table, by delta-rs: the merge is one commit that says that no data changed."""

from deltalake import CommitProperties, DeltaTable, WriterProperties

from headrace.spark.lake.delta import changes_told
from headrace.spark.lake.upkeep import Upkeep


class DeltaUpkeep:
    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def small_files(self, upkeep: Upkeep) -> int:
        self._table.update_incremental()
        sizes = self._table.get_add_actions(flatten=True)["size_bytes"].to_pylist()
        small = sum(size < upkeep.small_bytes for size in sizes)
        return small if small > upkeep.small_files_max else 0

    def compact(self, upkeep: Upkeep) -> int:
        with changes_told(self._table.table_uri):
            done = self._table.optimize.compact(
                target_size=upkeep.small_bytes * 2,
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        return int(done["numFilesRemoved"])

    def expire(self, upkeep: Upkeep) -> int:
        """Files of writers that died are among them: a commit that has taken a day will not come any more."""
        removed = self._table.vacuum(
            retention_hours=int(upkeep.keep_s // 3600),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        return len(removed)
