"""Asks the SQL server, and starts one where there is none."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.sql.wire import folder, receive_line, send_line

if TYPE_CHECKING:
    import pyarrow as pa

# A JVM that has not come up after this is not going to, even on a busy machine.
START_PATIENCE_S = 120.0
IDLE_S = 900.0
STOP_PATIENCE_S = 30.0
_LOG_TAIL_LINES = 5
REPLACED_MAX = 1


class QueryFailed(InvalidConfig):
    """The query makes no sense, or Spark gave up on it."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


class ServerFailed(HeadraceError):
    """No server could be started; its log says why."""


@dataclass(frozen=True, slots=True)
class Rows:
    count: int  # also of those that were not asked for
    reader: "pa.RecordBatchReader"


def query(sql: str, bootstrap: str, tables: Mapping[str, str], *, idle_s: float = IDLE_S) -> "pa.Table":
    """All rows at once."""
    with open_query(sql, bootstrap, tables, idle_s=idle_s) as rows:
        return rows.reader.read_all()


@contextmanager
def open_query(
    sql: str,
    bootstrap: str,
    tables: Mapping[str, str],
    *,
    idle_s: float = IDLE_S,
    rows_max: int | None = None,
    distinct_names: bool = False,
) -> Iterator[Rows]:
    """The rows, as they are read from the server; at most `rows_max` of them."""
    import pyarrow as pa

    request: dict[str, Any] = {"sql": sql, "bootstrap": bootstrap, "tables": dict(tables)}
    request |= {"rows_max": rows_max, "distinct_names": distinct_names}
    connection, answer = _asked(request, idle_s)
    with connection:
        if "error" in answer:
            raise QueryFailed(answer["error"], answer["hint"])
        with connection.makefile("rb") as stream, pa.ipc.open_stream(stream) as reader:
            yield Rows(answer["rows"], reader)


def _asked(request: dict[str, Any], idle_s: float) -> tuple[socket.socket, dict[str, Any]]:
    """The server's first line; a server whose Spark had ended before is replaced."""
    for _ in range(REPLACED_MAX + 1):
        connection = _connected(folder(), idle_s)
        send_line(connection, request)
        answer = receive_line(connection)
        if answer is not None and "ended" not in answer:
            return connection, answer
        connection.close()
        if answer is None:
            raise ServerFailed(f"the SQL server ended while it ran the query; its log is {folder() / 'log'}")
        _wait_until_gone(folder())
    raise ServerFailed(f"the SQL server's Spark ends at once; its log is {folder() / 'log'}")


def stop() -> bool:
    """False: there was none."""
    try:
        with _connect(folder()) as connection:
            send_line(connection, {"stop": True})
            receive_line(connection)
    except OSError:
        return False
    _wait_until_gone(folder())
    return True


def _connect(place: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(place / "socket"))
    except OSError:
        connection.close()
        raise
    return connection


def _connected(place: Path, idle_s: float) -> socket.socket:
    try:
        return _connect(place)
    except OSError:
        pass
    child = _start(place, idle_s)
    deadline = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < deadline:
        try:
            return _connect(place)
        except OSError:
            if child.poll() not in (None, 0):
                raise ServerFailed(f"the SQL server ended at once: {_log_tail(place)}") from None
            if child.poll() == 0:  # one that is about to end had the directory's lock
                child = _start(place, idle_s)
        time.sleep(0.05)
    raise ServerFailed(f"the SQL server did not come up in {START_PATIENCE_S:.0f} s; its log is {place / 'log'}")


def _start(place: Path, idle_s: float) -> subprocess.Popen[bytes]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ServerFailed("Spark needs Java, and there is none: apt-get install openjdk-17-jre-headless")
    with (place / "log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.spark.sql.server", str(place), str(idle_s)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _log_tail(place: Path) -> str:
    lines = (place / "log").read_text(encoding="utf-8", errors="replace").splitlines()
    return " / ".join(lines[-_LOG_TAIL_LINES:])


def _wait_until_gone(place: Path) -> None:
    deadline = time.monotonic() + STOP_PATIENCE_S
    while (place / "socket").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
