"""A Spark session with the settings that headrace's own jobs want: local by default, a cluster or Connect if asked."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAN_PYTHON = Path(__file__).with_name("worker-python")
_UNIX_SOCKETS = "PYSPARK_UDS_MODE"
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
    # The Parquet sink's default, INT96, is deprecated; most readers take it for nanoseconds, which end in 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def open_session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Spark on this machine, on a cluster (`master`), or a server's (`remote`, Spark Connect)."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if remote is not None:
        return _configured(builder.remote(remote).getOrCreate(), settings or {})
    local = master is None or master.startswith("local")
    use_this_python(local=local)
    where = LOCAL_SETTINGS if local else {f"spark.executorEnv.{_UNIX_SOCKETS}": os.environ[_UNIX_SOCKETS]}
    for key, value in {**SETTINGS, **where, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.master(master or "local[*]").getOrCreate()


@contextmanager
def session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """For a while. One that was there before is somebody else's, and stays."""
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    spark = open_session(name, master=master, remote=remote, settings=settings)
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()


def use_this_python(*, local: bool = True) -> None:
    """Before Spark starts: its workers run this Python, unless the environment names another.

    They start `python3` of the PATH otherwise, which need not be the one that has headrace. On this machine they import
    the PySpark that is installed here, compiled, not the zip that Spark hands them: 0.9 instead of 2.1 s of CPU until
    a worker is ready, and Spark gives the process of a streaming source ten seconds of the clock.

    Spark and its workers talk over Unix sockets. Over TCP every task of a Python source loses 40 ms: Spark sends two
    small messages, and holds the second back until the first is acknowledged, which Linux takes its time for.
    """
    os.environ.setdefault("HEADRACE_SPARK_PYTHON", sys.executable)
    os.environ.setdefault(_UNIX_SOCKETS, "true")
    lean = local and _is_this_pyspark() and os.access(_LEAN_PYTHON, os.X_OK)
    os.environ.setdefault("PYSPARK_PYTHON", str(_LEAN_PYTHON) if lean else sys.executable)


def _is_this_pyspark() -> bool:
    """Whether Spark will be the one that came with the PySpark of this Python."""
    import pyspark

    home = os.environ.get("SPARK_HOME")
    return home is None or Path(home).resolve() == Path(pyspark.__file__).resolve().parent


def _configured(spark: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    """A server's session takes only settings of SQL; the others are the server's business."""
    for key, value in {**SETTINGS, **settings}.items():
        if key.startswith("spark.sql.") and spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    return spark
