"""Follows all changes under a prefix without gaps: load, watch, and load again after changes were missed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from headrace.metadata.store import Change, Compacted, Snapshot, Store, StoreClosed, Unavailable

# Store failures end with an election or a restart: retried soon, and later at most once a second by each broker,
# without a limit.
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0


async def follow(
    store: Store, prefix: str, after_revision: int | None = None
) -> AsyncGenerator[Snapshot | Change, None]:
    """Yields changes in order; a Snapshot, which replaces all previous state, if changes may have been missed.

    Begins with a Snapshot, or with the changes after `after_revision`. Ends when the store is closed.
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
