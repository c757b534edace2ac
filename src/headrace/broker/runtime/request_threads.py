"""Limits on the threads that requests of clients occupy at once.

The default executor has at least five threads (CPython: four more than processors). Checkpoints, log start offsets, new
partitions and address look-ups for connections to peers share it. Requests that could occupy all of them wait here
instead, in the order in which they came, and each connection has one at most.
"""

import asyncio

# The interpreter lock lets one thread walk records at a time, so that more threads would not be faster. Two, so that a
# look-up in a small batch does not wait for one in a batch of a million records. Each holds a batch in memory.
LOOKUPS_MAX = 2
# Validation and decompression of large batches, for the same reasons. Producers do not wait for look-ups.
ADMISSIONS_MAX = 2


class RequestThreads:
    def __init__(self) -> None:
        self.lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self.admissions = asyncio.Semaphore(ADMISSIONS_MAX)
