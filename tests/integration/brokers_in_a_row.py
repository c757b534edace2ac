"""Starts and stops many LocalBrokers and prints, before and after, what this process holds.

    python brokers_in_a_row.py COUNT '{"memory": false}'

A script and not a fixture: it counts everything in its process, so it needs one to itself.
"""

import json
import os
import socket
import sys
import threading
import time
from typing import Any

import psutil

from headrace.testing import LocalBroker

SECONDS_MAX = 10.0
API_VERSIONS_REQUEST = b"\0\x12\0\0\0\0\0\x07\xff\xff"  # key 18, version 0, correlation id 7, no client id
GOOD_ANSWER = b"\0\0\0\x07\0\0"  # the correlation id, no error


def serves(broker: LocalBroker) -> bool:
    with socket.create_connection(("127.0.0.1", broker.port), SECONDS_MAX) as connection:
        connection.sendall(len(API_VERSIONS_REQUEST).to_bytes(4) + API_VERSIONS_REQUEST)
        return connection.recv(10)[4:10] == GOOD_ANSWER


def held() -> dict[str, Any]:
    """Everything a broker could forget, files aside."""
    own = psutil.Process()
    patience = time.monotonic() + SECONDS_MAX
    while own.num_threads() > threading.active_count() and time.monotonic() < patience:
        time.sleep(0.01)  # the kernel takes a moment to bury a thread that Python has already joined
    return {
        "descriptors": own.num_fds(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "kernel threads": own.num_threads(),
        "children": [child.pid for child in own.children(recursive=True)],
    }


def run(arguments: dict[str, Any]) -> None:
    with LocalBroker(**arguments) as broker:
        assert serves(broker)


def main(count: int, arguments: dict[str, Any]) -> None:
    run(arguments)  # the first imports what is needed and lets the interpreter open what it keeps open
    before = held()
    for _ in range(count):
        run(arguments)
    deadline = time.monotonic() + SECONDS_MAX
    # The kernel's half of a joined thread goes a moment after Python's.
    while held() != before and time.monotonic() < deadline:
        os.sched_yield()
    print(json.dumps(before))
    print(json.dumps(held()))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
