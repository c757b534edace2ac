"""Asks the SQL server, and starts one where there is none."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.sql.wire import folder, receive_line, send_line

if TYPE_CHECKING:
    import pyarrow as pa

# A JVM that has not come up after this is not going to, even on a busy machine.
START_PATIENCE_S = 120.0
IDLE_S = 900.0
STOP_PATIENCE_S = 30.0
_LOG_TAIL_LINES = 5


class QueryFailed(InvalidConfig):
    """The query makes no sense, or Spark gave up on it."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


class ServerFailed(HeadraceError):
    """No server could be started; its log says why."""


def query(sql: str, bootstrap: str, tables: Mapping[str, str], *, idle_s: float = IDLE_S) -> "pa.Table":
    import pyarrow as pa

    with _connected(folder(), idle_s) as connection:
        send_line(connection, {"sql": sql, "bootstrap": bootstrap, "tables": dict(tables)})
        answer = receive_line(connection)
        if answer is None:
            raise ServerFailed(f"the SQL server went away; its log is {folder() / 'log'}")
        if "error" in answer:
            raise QueryFailed(answer["error"], answer["hint"])
        with connection.makefile("rb") as stream, pa.ipc.open_stream(stream) as reader:
            return reader.read_all()


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
