"""All news under a prefix, without a gap: load, watch, and load again whenever the watch lost the thread.

Decides when to load again and how long to wait before. Knows nothing of what the facts mean.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from headrace.metadata.store import Change, Compacted, Snapshot, Store, StoreClosed, Unavailable

# A store that went away is back after an election or a restart: asked soon, and then no more than once a second by
# each broker, however long it takes.
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0


async def follow(
    store: Store, prefix: str, after_revision: int | None = None
) -> AsyncGenerator[Snapshot | Change, None]:
    """Changes in their order; a Snapshot, which replaces everything known, where changes may have been missed.

    It begins with a Snapshot, or with the changes after a revision; it ends when the store is closed.
    """
    position = after_revision
    rest_seconds = RETRY_SECONDS_MIN
    while True:
        try:
            if position is None:
                snapshot = await store.load(prefix)
                position = snapshot.revision
                yield snapshot
            async with aclosing(store.watch(prefix, position)) as changes:
                async for change in changes:
                    position = change.revision
                    rest_seconds = RETRY_SECONDS_MIN
                    yield change
            return
        except StoreClosed:
            return
        except Compacted:
            position = None
        except Unavailable:
            await asyncio.sleep(rest_seconds)
            rest_seconds = min(2 * rest_seconds, RETRY_SECONDS_MAX)
