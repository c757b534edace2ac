"""Limits the threads that client requests occupy at once.

The default executor has at least five threads (CPython: four more than processors). Checkpoints, log start offsets,
new partitions and address lookups for connections to peers share it. Requests that could occupy all threads wait
here instead, in order of arrival; each connection has at most one of them.
"""

import asyncio

# The global interpreter lock lets one thread at a time walk records, so more threads would not be faster. There are
# two, so that a lookup in a small batch does not wait for one in a batch of a million records. Each holds a batch in
# memory.
LOOKUPS_MAX = 2
# Validation and decompression of large batches, for the same reasons. Producers do not wait for lookups.
ADMISSIONS_MAX = 2


class RequestThreads:
    def __init__(self) -> None:
        self.lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self.admissions = asyncio.Semaphore(ADMISSIONS_MAX)
