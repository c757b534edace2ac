"""Confirms that a leader is still followed by every replica that could lead instead, before it answers from memory.

A coordinator that is isolated, or whose metadata is late, does not know that another broker took over: by an election
after its session expired, or by a reassignment while its session was valid. Records that it writes are not committed,
but a read waits for no commit and may be outdated. A broker that leads in its place fetches from it no more. So a read
waits for two fetches of each replica in the ISR: the first may have been sent before the request arrived, the second
was sent after the response to the first. Fetches that wait at the leader get their response at once, so this takes two
round trips. If the session may have expired, it waits for those in the ELR, too. While the session is valid, none of
them is elected: this broker is in the ISR, and its first successor is another member of it. While the metadata store is
unavailable no leader is replaced and all follow on.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headrace.broker.replica.partition import Partition

FETCHES = 2
WAIT_S_MAX = 3.0  # a follower that does not fetch for so long has failed; the ISR shrinks, and the client retries


def can_be_replaced(partition: Partition, *, may_be_fenced: bool) -> bool:
    """Whether another replica could lead without this broker's knowledge."""
    leadership = partition.leadership
    return leadership is None or bool(leadership.fetch_counts_of_electable(may_be_fenced=may_be_fenced))


async def confirm_leadership(partition: Partition, may_be_fenced: Callable[[], bool]) -> bool:
    """Waits for the fetches. `may_be_fenced` is called each time: the session may expire while this waits."""
    leadership = partition.leadership
    if leadership is None:
        return False
    before = leadership.fetch_counts_of_electable(may_be_fenced=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S_MAX):
            while partition.leadership is leadership:
                now = leadership.fetch_counts_of_electable(may_be_fenced=may_be_fenced())
                if all(count >= before.get(one, 0) + FETCHES for one, count in now.items()):
                    return True
                await partition.waiters.until_follower_fetches()
    return False
