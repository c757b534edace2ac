"""Creates Spark sessions with headrace's settings: local by default, or on a cluster or with Spark Connect."""

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
# Renaming makes Spark's checkpoint files atomic. Its default file manager takes five steps per file and costs 100 ms
# per micro-batch.
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
    # The Parquet sink's default INT96 is deprecated, and most readers interpret it as nanoseconds, which end in 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def open_session(
    name: str, *, master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Returns a session on this host, on a cluster (`master`), or of a server (`remote`, Spark Connect)."""
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
    """A session for the duration of the context. A session that existed before belongs to the caller and stays open."""
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    spark = open_session(name, master=master, remote=remote, settings=settings)
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()


def use_this_python(*, local: bool = True) -> None:
    """Makes Spark's workers run this Python, unless the environment names another. Call it before Spark starts.

    Otherwise they run `python3` of the PATH, which need not have headrace. On this host they import the installed,
    compiled PySpark instead of the zip that Spark passes to them: a worker is ready after 0.9 instead of 2.1 s of
    CPU, and Spark allows the process of a streaming source ten seconds of wall-clock time.

    Spark and its workers communicate over Unix sockets. Over TCP every task of a Python source loses 40 ms: Spark
    sends two small messages and delays the second until the first is acknowledged, and Linux delays that
    acknowledgement.
    """
    os.environ.setdefault("HEADRACE_SPARK_PYTHON", sys.executable)
    os.environ.setdefault(_UNIX_SOCKETS, "true")
    lean = local and _is_this_pyspark() and os.access(_LEAN_PYTHON, os.X_OK)
    os.environ.setdefault("PYSPARK_PYTHON", str(_LEAN_PYTHON) if lean else sys.executable)


def _is_this_pyspark() -> bool:
    """Whether Spark will be the one in the PySpark package of this Python."""
    import pyspark

    home = os.environ.get("SPARK_HOME")
    return home is None or Path(home).resolve() == Path(pyspark.__file__).resolve().parent


def _configured(spark: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    """Applies the settings that a server's session accepts: SQL settings only. Others are configured on the server."""
    for key, value in {**SETTINGS, **settings}.items():
        if key.startswith("spark.sql.") and spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    return spark
