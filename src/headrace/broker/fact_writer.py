"""How a decision becomes a fact: commit → apply → tell, one change at a time.

Decides only what happens when something comes between: a conflict (learn the news, decide again), a caller that
goes away (the change is finished all the same), a failure (what is not committed yet is answered with it).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from headrace.core.cluster import facts
from headrace.core.cluster.events import Event
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.values import Decision
from headrace.metadata.follow import follow
from headrace.metadata.store import KEYS_PER_COMMIT_MAX, Change, Conflict, LeaseId, OutcomeUnknown, Snapshot, Store
from headrace.model.errors import HeadraceError, RequestError

log = logging.getLogger(__name__)

Key = TypeVar("Key")
Wish = TypeVar("Wish")
Row = TypeVar("Row")

ChangeListener = Callable[[Event], Awaitable[None]]
Decide = Callable[[Mapping[Key, Wish]], Mapping[Key, Decision[Row] | RequestError]]

# Only another writer on the same store can cause a conflict; one that wins this often in a row is a storm, and
# the client's own retry is the better place to wait.
CONFLICTS_IN_A_ROW_MAX = 10
# Each has taken seconds already; a store that loses so many answers is not to be relied on.
UNKNOWN_OUTCOMES_IN_A_ROW_MAX = 3
# Between two tries to follow a store that cannot be followed: short beside the session of a broker.
FOLLOW_RETRY_S = 0.2


class FactWriter:
    def __init__(self, store: Store, image: ClusterImage) -> None:
        self._store = store
        self._image = image
        self._listeners: list[ChangeListener] = []
        self._one_at_a_time = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()

    def add_listener(self, listener: ChangeListener) -> None:
        self._listeners.append(listener)

    async def catch_up(self) -> None:
        """Learn every fact that the image does not know yet."""
        async with self._one_at_a_time:
            await self._catch_up()

    async def follow(self) -> None:
        """Learn what others commit, for as long as this is awaited: for a store that other brokers share."""
        while True:
            try:
                async with aclosing(follow(self._store, facts.ROOT, self._image.revision)) as news:
                    async for one in news:
                        await self._learn(one)
                return  # the store was closed
            except HeadraceError as error:
                log.error("the store cannot be followed: %s", error)
                await asyncio.sleep(FOLLOW_RETRY_S)

    async def _learn(self, news: Snapshot | Change) -> None:
        async with self._one_at_a_time:
            if news.revision <= self._image.revision:
                return  # our own commit, or it came with a snapshot
            try:
                if isinstance(news, Snapshot):
                    await self._take_over(news)
                else:
                    await self._tell(self._image.apply(news.revision, news.writes))
            except Exception:
                log.exception("revision %d could not be followed everywhere", news.revision)

    async def change_each(
        self, wishes: Sequence[tuple[Key, Wish]], decide: Decide[Key, Wish, Row], *, validate_only: bool = False
    ) -> dict[Key, Row | HeadraceError]:
        """Carry out what `decide` allows; a row or an error for each key, in their order.

        `decide` may be asked again, about those wishes that are not facts yet.
        """
        return await self._uninterrupted(wishes, decide, validate_only)

    async def change_one(self, decide: Callable[[], Decision[Row]], lease: LeaseId | None = None) -> Row:
        """Carry out a single decision, or raise why not.

        It must be one that may be taken again although it was carried out already: if the store goes away in the
        middle of the commit, nobody knows, and it is decided again on what the store then says.
        """
        for _ in range(UNKNOWN_OUTCOMES_IN_A_ROW_MAX):
            rows = await self._uninterrupted([(None, None)], lambda _: {None: decide()}, False, lease)
            if not isinstance(rows[None], OutcomeUnknown):
                break
            await self.catch_up()
        row = rows[None]
        if isinstance(row, HeadraceError):
            raise row
        return row

    async def finish(self) -> None:
        """Wait for changes under way."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _uninterrupted(
        self,
        wishes: Sequence[tuple[Key, Wish]],
        decide: Decide[Key, Wish, Row],
        validate_only: bool,
        lease: LeaseId | None = None,
    ) -> dict[Key, Row | HeadraceError]:
        """Whoever asked may go away; a committed fact that nobody applied would be worse than work for nobody."""
        work = self._carry_out(wishes, decide, validate_only, lease)
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # raised at whoever waits; nobody may be left to

    async def _carry_out(
        self,
        wishes: Sequence[tuple[Key, Wish]],
        decide: Decide[Key, Wish, Row],
        validate_only: bool,
        lease: LeaseId | None,
    ) -> dict[Key, Row | HeadraceError]:
        rows: dict[Key, Row | HeadraceError] = {}
        rows.update((key, named_twice()) for key in repeated(key for key, _ in wishes))
        failure: HeadraceError | None = None
        async with self._one_at_a_time:
            for _ in range(CONFLICTS_IN_A_ROW_MAX):
                try:
                    waiting = {key: wish for key, wish in wishes if key not in rows}
                    await self._settle(decide(waiting), rows, validate_only, lease)
                    break
                except Conflict as conflict:
                    failure = conflict
                    await self._catch_up()
                except HeadraceError as error:
                    failure = error
                    break
        return {key: rows.get(key, failure) for key, _ in wishes}  # type: ignore[misc]

    async def _settle(
        self,
        outcomes: Mapping[Key, Decision[Row] | RequestError],
        rows: dict[Key, Row | HeadraceError],
        validate_only: bool,
        lease: LeaseId | None,
    ) -> None:
        """Commit what was decided, and note every row as soon as it is true."""
        decisions: dict[Key, Decision[Row]] = {}
        for key, outcome in outcomes.items():
            if isinstance(outcome, RequestError):
                rows[key] = outcome
            else:
                decisions[key] = outcome
        for batch in _batches(decisions):
            if not validate_only:
                await self._commit([decisions[key] for key in batch], lease)
            rows.update((key, decisions[key].row) for key in batch)

    async def _commit(self, decisions: Sequence[Decision[Row]], lease: LeaseId | None) -> None:
        writes = {
            key: value
            for decision in decisions
            for key, value in decision.writes.items()
            if value is not None or self._image.version_of(key)
        }
        if not writes:
            return
        guards = [key for decision in decisions for key in decision.unchanged]
        expect = {key: self._image.version_of(key) for key in (*writes, *guards)}
        revision = await self._store.commit(expect, writes, lease)
        if revision == self._image.revision + 1:
            await self._tell(self._image.apply(revision, writes))
        else:  # others committed in between, and the image may not skip what they wrote
            await self._catch_up()

    async def _catch_up(self) -> None:
        snapshot = await self._store.load(facts.ROOT)
        if snapshot.revision >= self._image.revision:  # else it comes from a part of the store that lags behind
            await self._take_over(snapshot)

    async def _take_over(self, snapshot: Snapshot) -> None:
        news = sorted(
            (entry for entry in snapshot.entries.values() if entry.version != self._image.version_of(entry.key)),
            key=lambda entry: entry.version,
        )
        writes: dict[str, bytes | None] = dict.fromkeys(self._image.fact_keys() - snapshot.entries.keys())
        writes |= {entry.key: entry.value for entry in news}
        versions = {entry.key: entry.version for entry in news}
        await self._tell(self._image.apply(snapshot.revision, writes, versions))

    async def _tell(self, events: Sequence[Event]) -> None:
        """Everyone is told everything, whatever one of them makes of it; then the first trouble is raised."""
        first_trouble: Exception | None = None
        for event in events:
            for listener in self._listeners:
                try:
                    await listener(event)
                except Exception as error:
                    log.error("%s could not be followed: %s", type(event).__name__, error)
                    first_trouble = first_trouble or error
        if first_trouble is not None:
            raise first_trouble


def repeated(keys: Iterable[Key]) -> set[Key]:
    return {key for key, count in Counter(keys).items() if count > 1}


def named_twice() -> RequestError:
    return RequestError("named more than once in the request; nothing of it was done")


def _batches(decisions: Mapping[Key, Decision[Row]]) -> Iterator[list[Key]]:
    """As many decisions at a time as one commit can hold; none is ever split."""
    batch: list[Key] = []
    keys = 0
    for key, decision in decisions.items():
        needed = len(decision.writes) + len(decision.unchanged)  # what is written is expected too
        if batch and keys + needed > KEYS_PER_COMMIT_MAX:
            yield batch
            batch, keys = [], 0
        batch.append(key)
        keys += needed
    if batch:
        yield batch
