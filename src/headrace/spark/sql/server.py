"""A Spark that stays between queries, behind a socket that only its user can open.

Started by the first `headrace sql`, ends by itself when nobody has asked for a while. Each query has a session of its
own, so that views of one never show in another; a client that goes away takes its query along.
"""

import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from headrace.client.sync.client import ClientConfig, Cluster
from headrace.config.definition import nearest
from headrace.spark.session import open_session
from headrace.spark.sql.client import receive_line, send_line
from headrace.spark.sql.results import DIRECTORY, Result, check_names, result_of
from headrace.spark.sql.views import make_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

QUERIES_AT_ONCE = 4
LOOK_EVERY_S = 1.0
CANCEL_AGAIN_S = 0.1
# A broker that is away should not make a person wait as long as a job.
PATIENCE_S = 10.0
# Of a query during which Spark ended. The client starts another server for the next one.
SPARK_ENDED = {
    "error": "Spark's Java process ended while it ran the query; it may have run out of memory",
    "hint": "PYSPARK_SUBMIT_ARGS='--driver-memory 4g pyspark-shell' gives more to the one that the next query starts",
}


class SqlServer:
    def __init__(self, spark: "SparkSession", folder: Path, idle_s: float) -> None:
        self._spark = spark
        self._directory = folder
        self._path = folder / "socket"
        self._idle_s = idle_s
        self._stop = threading.Event()
        self._busy = 0
        self._used_at = time.monotonic()
        self._lock = threading.Lock()

    def ask_to_stop(self, *_: object) -> None:
        self._stop.set()

    def serve(self) -> None:
        """Until asked to stop, until there was no request for too long, or until Spark has ended."""
        self._path.unlink(missing_ok=True)
        rmtree(self._directory / DIRECTORY, ignore_errors=True)  # of a server that was killed
        with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
            # Clients find it when it listens, and never before others are kept out.
            unfinished = self._path.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            listener.bind(str(unfinished))
            unfinished.chmod(0o600)
            listener.listen()
            unfinished.rename(self._path)
            listener.settimeout(LOOK_EVERY_S)
            # Without its socket, say because somebody cleared the folder, nobody can ask it anything.
            while not self._stop.is_set() and not self._is_idle() and self._path.exists() and self._has_spark():
                with contextlib.suppress(TimeoutError):
                    pool.submit(self._answer, listener.accept()[0])
        self._path.unlink(missing_ok=True)

    def _has_spark(self) -> bool:
        """Its Java process may have ended, for want of memory or by another's hand; no query would work any more."""
        context = self._spark.sparkContext
        process = getattr(context._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return False
        try:
            return not context._jsc.sc().isStopped()
        except Exception:  # Py4J has many ways to say that nothing listens
            log.warning("Spark does not respond", exc_info=True)
            return False

    def _is_idle(self) -> bool:
        with self._lock:
            return not self._busy and time.monotonic() - self._used_at > self._idle_s

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                self._used_at = time.monotonic()

    def _answer(self, connection: socket.socket) -> None:
        with self._used(), connection, contextlib.suppress(OSError):
            connection.settimeout(None)
            request = receive_line(connection)
            if request is None:
                return
            if request.get("stop"):
                self._stop.set()
            elif not self._has_spark():
                send_line(connection, {"ended": True})
                self._stop.set()
            else:
                self._answer_query(connection, request)

    def _answer_query(self, connection: socket.socket, request: dict[str, Any]) -> None:
        group, over = uuid4().hex, threading.Event()
        watch = threading.Thread(target=self._cancel_when_gone, args=(connection, group, over), daemon=True)
        watch.start()
        try:
            with result_of(self._planned(request, group), self._directory) as result:
                over.set()
                self._send(connection, result, request.get("rows_max"))
        except Exception as error:
            log.info("query failed", exc_info=True)
            if not self._has_spark():
                send_line(connection, SPARK_ENDED)
            elif isinstance(error, OSError):
                raise  # the client has gone
            else:
                send_line(connection, told(error, request.get("topics", [])))
        finally:
            over.set()

    def _send(self, connection: socket.socket, result: Result, rows_max: int | None) -> None:
        send_line(connection, {"rows": result.rows})
        with connection.makefile("wb") as stream, pa.ipc.new_stream(stream, result.schema) as writer:
            for batch in result.batches(rows_max):
                writer.write_batch(batch)

    def _planned(self, request: dict[str, Any], group: str) -> "DataFrame":
        spark = self._spark.newSession()
        spark.sparkContext.setJobGroup(group, "headrace sql", interruptOnCancel=True)
        settings = ClientConfig(bootstrap=request["bootstrap"], client_id="headrace-sql", patience_s=PATIENCE_S)
        cluster = Cluster(settings)
        try:
            request["topics"] = [*make_views(spark, cluster, request["sql"], request["tables"]), *request["tables"]]
        finally:
            cluster.close()
        rows = spark.sql(request["sql"])
        if request.get("distinct_names"):
            check_names(rows.schema)
        return rows

    def _cancel_when_gone(self, connection: socket.socket, group: str, over: threading.Event) -> None:
        """Again and again: a query is several jobs, one after the other, and only those that run are cancelled."""
        with contextlib.suppress(OSError):
            if connection.recv(1):
                return
        while not over.wait(CANCEL_AGAIN_S):
            self._spark.sparkContext.cancelJobGroup(group)


def told(error: Exception, names: list[str]) -> dict[str, str]:
    """What a person needs of an exception of Spark's or of ours."""
    text = str(error).strip().partition("\n")[0]
    condition, parameters = _condition(error)
    hint = ""
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        missing = parameters.get("relationName", "").strip("`")
        close = nearest(missing, names)
        hint = f"did you mean {close}?" if close else "`headrace topics list` shows the topics, --table adds tables"
        text = f"there is no topic or table {missing}"
    return {"error": text or type(error).__name__, "hint": hint}


def _condition(error: Exception) -> tuple[str, dict[str, str]]:
    """What Spark calls it, and what it says about it."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return "", {}
    return error.getCondition() or "", dict(error.getMessageParameters() or {})


def main(arguments: list[str]) -> int:
    """FOLDER IDLE-SECONDS. The lock is held for life, so that a folder has one server."""
    folder, idle_s = Path(arguments[0]), float(arguments[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0  # somebody else was faster, and will answer
    spark = open_session("headrace-sql")
    spark.sql("select 1").toArrow()  # the first query pays for a lot of loading
    server = SqlServer(spark, folder, idle_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.ask_to_stop)  # else the JVM would outlive us by a while
    server.serve()
    with contextlib.suppress(Exception):  # its Java process may have ended before
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
