"""SQL server: a Spark session that stays open between queries, on a Unix socket that only its user can open.

Started by the first `headrace sql`; ends after an idle time. Each query has a session of its own, so that views of
one are invisible to others. A query is cancelled when its client disconnects.
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
# Limit for an unavailable broker: interactive users wait less long than jobs.
PATIENCE_S = 10.0
# Response to a query during which Spark ended. The client starts another server for the next query.
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
        """Serves until a stop request, until the idle time has passed, or until Spark has ended."""
        self._path.unlink(missing_ok=True)
        rmtree(self._directory / DIRECTORY, ignore_errors=True)  # left by a server that was killed
        with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
            # The socket is renamed when it listens and has its permissions, so that clients never find it earlier.
            unfinished = self._path.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            listener.bind(str(unfinished))
            unfinished.chmod(0o600)
            listener.listen()
            unfinished.rename(self._path)
            listener.settimeout(LOOK_EVERY_S)
            # Without its socket, for example after the directory was emptied, no client can reach the server.
            while not self._stop.is_set() and not self._is_idle() and self._path.exists() and self._has_spark():
                with contextlib.suppress(TimeoutError):
                    pool.submit(self._answer, listener.accept()[0])
        self._path.unlink(missing_ok=True)

    def _has_spark(self) -> bool:
        """Whether Spark works. Its Java process may have ended, because of memory or a signal; no query would succeed
        then.
        """
        context = self._spark.sparkContext
        process = getattr(context._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return False
        try:
            return not context._jsc.sc().isStopped()
        except Exception:  # Py4J raises many exceptions for an unreachable JVM
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
                raise  # the client has disconnected
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
        """Cancels the query when its client disconnects. Repeated, because a query runs several jobs one after the
        other and only running jobs can be cancelled.
        """
        with contextlib.suppress(OSError):
            if connection.recv(1):
                return
        while not over.wait(CANCEL_AGAIN_S):
            self._spark.sparkContext.cancelJobGroup(group)


def told(error: Exception, names: list[str]) -> dict[str, str]:
    """Returns message and hint of an exception of Spark or headrace, for display."""
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
    """Returns Spark's error condition and its parameters."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return "", {}
    return error.getCondition() or "", dict(error.getMessageParameters() or {})


def main(arguments: list[str]) -> int:
    """Arguments: directory and idle seconds. The lock is held until the process ends, so that a directory has one
    server.
    """
    folder, idle_s = Path(arguments[0]), float(arguments[1])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0  # another server was faster and will serve the request
    spark = open_session("headrace-sql")
    spark.sql("select 1").toArrow()  # loads what the first query would otherwise wait for
    server = SqlServer(spark, folder, idle_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.ask_to_stop)  # without it the JVM would outlive this process for a while
    server.serve()
    with contextlib.suppress(Exception):  # its Java process may have ended before
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
