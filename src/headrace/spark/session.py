"""A Spark session with the settings that headrace's own jobs want: local by default, a cluster or Connect if asked."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A directory rename is what makes Spark's checkpoint files whole; its default manager takes five steps for each and
# costs 100 ms a micro-batch.
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2)),
    "spark.log.level": "WARN",
}
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
}


def open_session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Spark on this machine, on a cluster (`master`), or a server's (`remote`, Spark Connect)."""
    # Workers start `python3` of the PATH otherwise, which is not the one that has headrace.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if remote is not None:
        return _configured(builder.remote(remote).getOrCreate(), settings or {})
    local = master is None or master.startswith("local")
    for key, value in {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.master(master or "local[*]").getOrCreate()


def _configured(spark: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    """A server's session takes only settings of SQL; the others are the server's business."""
    for key, value in {**SETTINGS, **settings}.items():
        if key.startswith("spark.sql.") and spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    return spark
