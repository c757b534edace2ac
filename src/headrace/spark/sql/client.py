"""Client of the SQL server, and its protocol:

request     one line of JSON
response    one line of JSON: {"rows"} or {"error", "hint"}; rows follow as an Arrow stream
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import __version__
from headrace.model.errors import HeadraceError, InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa


FOLDER_VARIABLE = "HEADRACE_SQL"
# Queries are written by people; a larger one is not a query.
REQUEST_BYTES_MAX = 4 * 1024 * 1024
SOCKET_PATH_BYTES_MAX = 107  # limit of the kernel's socket address, without its last byte 0


def folder() -> Path:
    """Returns the server's directory, accessible to its user only: under $HEADRACE_SQL, or under the user's state
    directory.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    place = (Path(named) if named else Path(base) / "headrace" / "sql") / _version()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.chmod(0o700)
    if len(os.fsencode(place / "socket")) > SOCKET_PATH_BYTES_MAX:
        raise InvalidConfig(f"{place} is too long a path for a socket; set {FOLDER_VARIABLE} to a shorter one")
    return place


def _version() -> str:
    """Identifies version and Python. Each combination has a server of its own, because protocols and packages may
    differ.
    """
    return sha256(f"{__version__} {sys.executable}".encode()).hexdigest()[:8]


def send_line(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def receive_line(connection: socket.socket) -> dict[str, Any] | None:
    """Returns one message; None if the peer has closed the connection."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1) if len(line) < REQUEST_BYTES_MAX else b""
        if not byte:
            return None
        line += byte
    value: dict[str, Any] = json.loads(line)
    return value


# A JVM that has not started after this time will not start, even on a busy host.
START_PATIENCE_S = 120.0
IDLE_S = 900.0
STOP_PATIENCE_S = 30.0
_LOG_TAIL_LINES = 5
REPLACED_MAX = 1


class QueryFailed(InvalidConfig):
    """The query is invalid, or Spark failed to run it."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


class ServerFailed(HeadraceError):
    """The server could not be started. Its log has the reason."""


@dataclass(frozen=True, slots=True)
class Rows:
    count: int  # including rows beyond rows_max
    reader: "pa.RecordBatchReader"


def query(sql: str, bootstrap: str, tables: Mapping[str, str], *, idle_s: float = IDLE_S) -> "pa.Table":
    """Runs a query and returns all rows."""
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
    """Runs a query. Yields a reader of at most `rows_max` rows, which are read from the server as needed."""
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
    """Returns the connection and the first line of the response. Replaces a server whose Spark has ended."""
    for _ in range(REPLACED_MAX + 1):
        connection = _connected(folder(), idle_s)
        send_line(connection, request)
        answer = receive_line(connection)
        if answer is not None and "ended" not in answer:
            return connection, answer
        connection.close()
        if answer is None:
            raise ServerFailed(f"the SQL server exited during the query; see the log {folder() / 'log'}")
        _wait_until_gone(folder())
    raise ServerFailed(f"Spark exited during the start of the SQL server; see the log {folder() / 'log'}")


def stop() -> bool:
    """Stops the server. Returns False if there was none."""
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
                raise ServerFailed(f"the SQL server exited during its start: {_log_tail(place)}") from None
            if child.poll() == 0:  # the lock was held by a server that is about to end
                child = _start(place, idle_s)
        time.sleep(0.05)
    raise ServerFailed(f"the SQL server did not start within {START_PATIENCE_S:.0f} s; see the log {place / 'log'}")


def _start(place: Path, idle_s: float) -> subprocess.Popen[bytes]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ServerFailed("Spark needs Java, which is not installed: apt-get install openjdk-17-jre-headless")
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
