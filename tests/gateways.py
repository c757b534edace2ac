"""`headrace gateway` as a process, in front of a broker that somebody else has started."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import until

START_S_MAX = STOP_S_MAX = 60.0


@contextmanager
def gateway_alone(bootstrap: str, folder: Path) -> Iterator[str]:
    """The address of its REST; what it says is in `gateway.log` of the folder. It outlives its broker."""
    command = [sys.executable, "-m", "headrace.cli.main", "gateway", "--http", "127.0.0.1:0"]
    command += ["--grpc", "127.0.0.1:0", "--bootstrap", bootstrap]
    said = folder / "gateway.log"
    with said.open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        until(lambda: "REST on http://" in said.read_text(), said.read_text, START_S_MAX)
        yield said.read_text().split("REST on ")[1].split(",")[0]
    finally:
        process.terminate()
        code = process.wait(STOP_S_MAX)
    assert code == 0, said.read_text()
