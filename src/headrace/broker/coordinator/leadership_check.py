"""Read barrier for coordinators: confirms leadership with every electable follower before serving in-memory state.

A coordinator that is isolated, or whose metadata is stale, may have been replaced: by an election after its session
expired, or by a reassignment while its session was valid. Its writes are not committed, but a read does not wait for
a commit and may be outdated. A broker that has replaced it no longer fetches from it.

Therefore a read waits for two fetches of each follower in the ISR. The first may have been sent before the read
arrived; the second was sent after the response to the first. Delayed fetches are completed at once, so this takes two
round trips. If the session may have expired, the read also waits for the ELR. While the session is valid, no member
of the ELR is elected: this broker is in the ISR, and another ISR member would be elected before them. While the
metadata store is unavailable, no leader is replaced and all followers keep fetching.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headrace.broker.replica.partition import Partition

FETCHES = 2
WAIT_S_MAX = 3.0  # a follower without a fetch for this long has failed; the ISR shrinks, and the client retries


def can_be_replaced(partition: Partition, *, may_be_fenced: bool) -> bool:
    """Whether another replica could be leader without this broker having received it."""
    leadership = partition.leadership
    return leadership is None or bool(leadership.fetch_counts_of_electable(may_be_fenced=may_be_fenced))


async def confirm_leadership(partition: Partition, may_be_fenced: Callable[[], bool]) -> bool:
    """Returns whether this broker is still the leader, confirmed by `FETCHES` fetches of each electable follower.

    Returns False after `WAIT_S_MAX`. `may_be_fenced` is called repeatedly, because the session may expire during the
    wait.
    """
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
