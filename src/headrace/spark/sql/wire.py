"""What the command and the server say to each other on their socket.

request    one line of JSON
answer     one line of JSON: {"rows"} or {"error", "hint"}; rows follow as an Arrow stream
"""

import json
import os
import socket
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.model.errors import InvalidConfig

FOLDER_VARIABLE = "HEADRACE_SQL"
# A query is text that people write; more than this is none.
REQUEST_BYTES_MAX = 4 * 1024 * 1024
SOCKET_PATH_BYTES_MAX = 107  # of the kernel's address, with its last byte 0


def folder() -> Path:
    """Where the server is met: $HEADRACE_SQL, or the place for such things in the user's home. Closed to others."""
    named = os.environ.get(FOLDER_VARIABLE)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    place = (Path(named) if named else Path(base) / "headrace" / "sql") / _version()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.chmod(0o700)
    if len(os.fsencode(place / "socket")) > SOCKET_PATH_BYTES_MAX:
        raise InvalidConfig(f"{place} is too long a path for a socket; set {FOLDER_VARIABLE} to a shorter one")
    return place


def _version() -> str:
    """Servers of other versions and other Pythons answer by other rules; each of them is met elsewhere."""
    return sha256(f"{__version__} {sys.executable}".encode()).hexdigest()[:8]


def send_line(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def receive_line(connection: socket.socket) -> dict[str, Any] | None:
    """None: the other side has gone."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1) if len(line) < REQUEST_BYTES_MAX else b""
        if not byte:
            return None
        line += byte
    value: dict[str, Any] = json.loads(line)
    return value
