"""Whether a leader that may have been replaced is still followed: asked before it answers from memory alone.

A coordinator that is cut off from the store does not hear that another one has taken over. What it writes is committed
nowhere, so nothing comes of that; but what it only reads waits for nobody, and may be long outdated. A broker that
leads in its place follows it no more. While the store is away for everybody nobody is replaced, all follow on, and such
an answer takes a second at most.
"""

import asyncio

from headrace.broker.partition import Partition

FETCHES = 2  # the first may have been sent before the question; the second was sent after the answer to that
LOOK_S = 0.05
WAIT_S_MAX = 3.0  # a follower asks twice a second where nothing happens (replica.fetch.wait.max.ms)


async def is_followed(partition: Partition) -> bool:
    leadership = partition.leadership
    if leadership is None:
        return False
    before = leadership.fetches_of_successors()
    for _ in range(round(WAIT_S_MAX / LOOK_S)):
        if partition.leadership is not leadership:
            return False
        now = leadership.fetches_of_successors()
        if all(count >= before.get(one, 0) + FETCHES for one, count in now.items()):
            return True
        await asyncio.sleep(LOOK_S)
    return False
