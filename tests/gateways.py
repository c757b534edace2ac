"""`headrace gateway` as a process, in front of a broker that somebody else has started."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.patience import until

START_S_MAX = STOP_S_MAX = 60.0


class Doors(NamedTuple):
    rest: str  # a URL
    grpc: str  # a host:port, as channels want it


@contextmanager
def gateway_alone(bootstrap: str, folder: Path) -> Iterator[str]:
    """The address of its REST; what it says is in `gateway.log` of the folder. It outlives its broker."""
    with doors_alone(bootstrap, folder) as doors:
        yield doors.rest


@contextmanager
def doors_alone(bootstrap: str, folder: Path) -> Iterator[Doors]:
    """The same, with the address of its gRPC."""
    command = [sys.executable, "-m", "headrace.cli.main", "gateway", "--http", "127.0.0.1:0"]
    command += ["--grpc", "127.0.0.1:0", "--bootstrap", bootstrap]
    said = folder / "gateway.log"
    with said.open("w") as log:
        process = subprocess.Popen(command, stderr=log)

    def told(door: str) -> str:
        return said.read_text().partition(f"{door} on ")[2].partition(",")[0]

    try:
        until(lambda: told("REST") and told("gRPC"), said.read_text, START_S_MAX)
        yield Doors(told("REST"), told("gRPC"))
    finally:
        process.terminate()
        code = process.wait(STOP_S_MAX)
    assert code == 0, said.read_text()
