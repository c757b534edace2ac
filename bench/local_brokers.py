"""A program of its own: enters and leaves LocalBroker or LocalCluster many times, counts what is left, prints JSON.

python -m bench.local_brokers process|in-process|cluster|cluster-etcd COUNT
"""

import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from bench.proc import children
from headrace.testing import LocalBroker, LocalCluster

_FIRST = 2  # what the first ones leave is kept on purpose: imported modules, pools, caches
_DELIVERY_S = 30.0
_NODES = 3


def _local(mode: str) -> LocalBroker | LocalCluster:
    if mode.startswith("cluster"):
        return LocalCluster(_NODES, etcd=_NODES if mode == "cluster-etcd" else 0)
    return LocalBroker(memory=True, in_process=mode == "in-process")


def _first_ack_ms(mode: str) -> float:
    start = time.monotonic()
    with _local(mode) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0})
        producer.produce("first", b"record")
        if producer.flush(_DELIVERY_S):
            sys.exit("the first record was not acked")
        return (time.monotonic() - start) * 1e3


def _held(temporary: Path) -> dict[str, int]:
    """What this process holds now, of each kind."""
    gc.collect()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": children(os.getpid()),
        "files": sum(1 for _ in temporary.rglob("*")),
    }


def main() -> None:
    mode, count = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        os.environ["TMPDIR"] = tempfile.tempdir = directory
        for _ in range(_FIRST):
            _first_ack_ms(mode)
        before = _held(Path(directory))
        times = [_first_ack_ms(mode) for _ in range(count)]
        after = _held(Path(directory))
    leaked = sum(max(0, after[kind] - before[kind]) for kind in before)
    print(json.dumps({"enter_to_ack": median(times), "enter_to_ack_max": max(times), "leaked": leaked}))


if __name__ == "__main__":
    main()
