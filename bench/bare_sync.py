"""The least that an ack from disk can take: one small append and fdatasync after the other, by nobody's protocol.

python -m bench.bare_sync FILE COUNT RATE    prints the p99 in ms, each taken from the moment at which it was due
"""

import os
import sys
import time

from headrace.process.runtime import BROKER_SLICE_NS, set_scheduler_slice

_BATCH = b"x" * 170  # what a record of 100 bytes is in a batch of its own


def sync_p99_ms(path: str, count: int, rate: int) -> float:
    set_scheduler_slice(BROKER_SLICE_NS)  # as the broker's threads that sync
    waits_s = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    start = time.monotonic()
    for number in range(count):
        due = start + number / rate
        time.sleep(max(due - time.monotonic(), 0.0))
        os.pwrite(descriptor, _BATCH, number * len(_BATCH))
        os.fdatasync(descriptor)
        waits_s.append(time.monotonic() - due)
    os.close(descriptor)
    return sorted(waits_s)[count * 99 // 100] * 1e3


if __name__ == "__main__":
    print(sync_p99_ms(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
