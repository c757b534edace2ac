"""Commits metadata changes and applies them to the image, one commit at a time.

The lock is held from the decision until the image has the change. Listeners run outside of it
(`metadata_publisher.py`), so that an ISR change or an election is committed while the partitions of a new topic are
created. A change returns when the listeners have processed it, unless its caller needs only the image. After a
conflict, the decision is made again. A change whose caller is cancelled is completed. After a failure, every key
that is not committed yet gets the error.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.broker.controller.metadata_publisher import EventDelivery, MetadataPublisher, followed
from headrace.core.controller.cluster_control import DuplicateBroker
from headrace.core.image import records
from headrace.core.image.deltas import MetadataDelta
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision
from headrace.metadata.store import KEYS_PER_COMMIT_MAX, Change, Conflict, LeaseId, OutcomeUnknown, Snapshot, Store
from headrace.metadata.watch import follow
from headrace.model.errors import HeadraceError, RequestError

log = logging.getLogger(__name__)

Key = TypeVar("Key")
Wish = TypeVar("Wish")
Row = TypeVar("Row")

Decide = Callable[[Mapping[Key, Wish]], Mapping[Key, Decision[Row] | RequestError]]

# Only another writer of the same store can cause a conflict. After so many conflicts in a row, contention is too high,
# and the client should retry with its own backoff.
CONFLICTS_IN_A_ROW_MAX = 10
# Each has taken seconds already, so the metadata store is treated as unavailable.
UNKNOWN_OUTCOMES_IN_A_ROW_MAX = 3
# Delay before following the metadata store is retried; short compared to a broker's session.
FOLLOW_RETRY_S = 0.2
# One of the keys that a commit can compare is this broker's registration.
KEYS_PER_BATCH_MAX = KEYS_PER_COMMIT_MAX - 1
# Limit for the values of a commit. etcd rejects requests above 1.5 MiB (default of --max-request-bytes); the keys,
# versions and framing of 127 writes and comparisons take less than 100 KiB.
BYTES_PER_BATCH_MAX = 1024 * 1024
TOUCHED = b"{}"  # value of a key of which only the version matters


class Pinned(NamedTuple, Generic[Row]):
    """A decision with the versions of the image that it was based on.

    The image may have changed when the decision is committed, by an earlier batch or by another broker. The commit
    compares these versions, not the newer ones, so that it never overwrites a change that the decision has not
    considered.
    """

    row: Row
    writes: Mapping[str, bytes | None]
    expect: Mapping[str, int]

    @classmethod
    def of(cls, decision: Decision[Row], image: MetadataImage) -> "Pinned[Row]":
        expect = {key: image.version_of(key) for key in (*decision.writes, *decision.unchanged)}
        writes = {key: value for key, value in decision.writes.items() if value is not None or expect[key]}
        return cls(decision.row, writes | dict.fromkeys(decision.touched if writes else (), TOUCHED), expect)


class MetadataWriter:
    def __init__(self, store: Store, image: MetadataImage) -> None:
        self._store = store
        self._image = image
        self._delivery = EventDelivery()
        self._one_at_a_time = asyncio.Lock()  # held until the image has the change; not while listeners run
        self._under_way: set[asyncio.Task[Any]] = set()
        self._registration: tuple[str, int] | None = None  # key and version

    def add_listener(self, listener: MetadataPublisher) -> None:
        self._delivery.add_listener(listener)

    def act_as(self, node_id: int, broker_epoch: int) -> None:
        """Commits only while this registration is the newest of its broker id; raises DuplicateBroker afterwards.

        A process that was replaced by another one with the same id then changes no metadata in its name.
        """
        self._registration = records.broker_key(node_id), broker_epoch

    def _check_registration(self) -> None:
        if self._registration is not None:
            key, version = self._registration
            if self._image.version_of(key) != version:
                raise DuplicateBroker("Another process has registered with the id of this broker")

    async def catch_up(self) -> None:
        """Loads every change that the image lacks. Returns when the listeners have processed them."""
        self._delivery.check_not_listening()
        async with self._one_at_a_time:
            delivery = await self._catch_up()
        if delivery is not None:
            await followed(delivery)

    async def deliver_again(self, events: Sequence[MetadataDelta]) -> None:
        """Delivers events without a change, in order with those of changes. Returns when they are processed."""
        await followed(self._delivery.deliver(events))

    async def confirm(self) -> None:
        """Returns when the listeners have processed every change that any broker committed before this call."""
        revision = await self._store.commit({}, {})
        await self.catch_up()
        while self._image.revision < revision:  # a load may return an older revision
            await asyncio.sleep(FOLLOW_RETRY_S)
            await self.catch_up()
        await self.settled()

    async def settled(self) -> None:
        """Returns when the listeners have processed everything that is in the image now."""
        await self._delivery.settled()

    async def follow(self) -> None:
        """Applies the changes of other brokers that share the metadata store, until it is cancelled."""
        while True:
            try:
                async with aclosing(follow(self._store, records.ROOT, self._image.revision)) as news:
                    async for one in news:
                        await self._learn(one)
                return  # the store was closed
            except HeadraceError as error:
                log.error("the store cannot be followed: %s", error)
                await asyncio.sleep(FOLLOW_RETRY_S)

    async def _learn(self, news: Snapshot | Change) -> None:
        if self._delivery.is_behind:
            await self._delivery.settled()
        async with self._one_at_a_time:
            if news.revision <= self._image.revision:
                return  # a commit of this broker, or one included in a snapshot
            try:
                if isinstance(news, Snapshot):
                    self._take_over(news)
                else:
                    self._delivery.deliver(self._image.apply(news.revision, news.writes))
            except Exception:
                log.exception("Revision %d of the metadata could not be applied", news.revision)

    async def write_each(
        self,
        wishes: Sequence[tuple[Key, Wish]],
        decide: Decide[Key, Wish, Row],
        *,
        validate_only: bool = False,
        awaits_listeners: bool = True,
    ) -> dict[Key, Row | HeadraceError]:
        """Commits what `decide` allows. Returns a result or an error for each key, in order.

        `decide` may be called again with the requests that are not committed yet. Returns when the listeners have
        processed the change; without `awaits_listeners`, as soon as the image has it.
        """
        return await self._uninterrupted(wishes, decide, validate_only, awaits_listeners=awaits_listeners)

    async def write_one(
        self, decide: Callable[[], Decision[Row]], lease: LeaseId | None = None, *, awaits_listeners: bool = True
    ) -> Row:
        """Commits a single decision, or raises the error.

        The decision must be repeatable: if the store becomes unavailable during the commit, the outcome is unknown,
        and the decision is made again on the metadata that the store then returns.
        """
        for _ in range(UNKNOWN_OUTCOMES_IN_A_ROW_MAX):
            rows = await self._uninterrupted([(None, None)], lambda _: {None: decide()}, False, lease, awaits_listeners)
            if not isinstance(rows[None], OutcomeUnknown):
                break
            await self.catch_up()
        row = rows[None]
        if isinstance(row, HeadraceError):
            raise row
        return row

    async def finish(self) -> None:
        """Waits for changes in flight and for the listeners."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._delivery.settled()

    async def _uninterrupted(
        self,
        wishes: Sequence[tuple[Key, Wish]],
        decide: Decide[Key, Wish, Row],
        validate_only: bool,
        lease: LeaseId | None = None,
        awaits_listeners: bool = True,
    ) -> dict[Key, Row | HeadraceError]:
        """Completes a change even if its caller is cancelled: a committed change must be applied to the image."""
        self._delivery.check_not_listening()
        work = self._carry_out(wishes, decide, validate_only, lease, awaits_listeners)
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # raised to the caller, which may have been cancelled

    async def _carry_out(
        self,
        wishes: Sequence[tuple[Key, Wish]],
        decide: Decide[Key, Wish, Row],
        validate_only: bool,
        lease: LeaseId | None,
        awaits_listeners: bool,
    ) -> dict[Key, Row | HeadraceError]:
        rows: dict[Key, Row | HeadraceError] = {}
        rows.update((key, named_twice()) for key in repeated(key for key, _ in wishes))
        wanted = dict(wishes)
        failure: HeadraceError | None = None
        conflicts = 0
        plan: list[tuple[Key, Pinned[Row]]] = []
        while conflicts < CONFLICTS_IN_A_ROW_MAX and len(rows) < len(wanted):
            try:
                # Held for one batch: other callers' changes are committed between two batches.
                async with self._one_at_a_time:
                    self._check_registration()
                    if not plan or not self._is_current(plan):
                        waiting = {key: wish for key, wish in wanted.items() if key not in rows}
                        outcomes = decide(waiting)
                        assert outcomes.keys() == waiting.keys(), "every key gets an outcome"
                        plan = self._planned(outcomes, rows, validate_only)
                    batch = plan[: _batch_length([one for _, one in plan])]
                    delivery = await self._commit([one for _, one in batch], lease)
                plan = plan[len(batch) :]
                if delivery is not None and awaits_listeners:
                    await followed(delivery)
                rows.update((key, one.row) for key, one in batch)
            except Conflict as conflict:
                failure = conflict
                conflicts += 1
                plan = []
                async with self._one_at_a_time:
                    await self._catch_up()
            except HeadraceError as error:
                failure = error
                break
        return {key: rows.get(key, failure) for key in wanted}  # type: ignore[misc]

    def _planned(
        self,
        outcomes: Mapping[Key, Decision[Row] | RequestError],
        rows: dict[Key, Row | HeadraceError],
        validate_only: bool,
    ) -> list[tuple[Key, Pinned[Row]]]:
        """Returns the decisions to commit, in order. Adds a row for each key that needs no commit.

        A decision that compares a key which an earlier one writes is left out, and made again later.
        """
        plan: list[tuple[Key, Pinned[Row]]] = []
        written: set[str] = set()
        for key, outcome in outcomes.items():
            if isinstance(outcome, RequestError):
                rows[key] = outcome
                continue
            one = Pinned.of(outcome, self._image)
            if validate_only:
                rows[key] = one.row
            elif written.isdisjoint(one.expect):
                plan.append((key, one))
                written.update(one.writes)
        return plan

    def _is_current(self, plan: Sequence[tuple[Key, Pinned[Row]]]) -> bool:
        """Returns whether the image still has the versions that the decisions are based on."""
        return all(self._image.version_of(key) == version for _, one in plan for key, version in one.expect.items())

    async def _commit(self, decisions: Sequence[Pinned[Any]], lease: LeaseId | None) -> asyncio.Task[None] | None:
        """Commits and applies the decisions. Returns a task that ends when the listeners are done, or None."""
        writes = {key: value for decision in decisions for key, value in decision.writes.items()}
        if not writes:
            return None
        expect = {key: version for decision in decisions for key, version in decision.expect.items()}
        if self._registration is not None:
            expect.update([self._registration])
        revision = await self._store.commit(expect, writes, lease)
        if revision == self._image.revision + 1:
            return self._delivery.deliver(self._image.apply(revision, writes))
        return await self._catch_up()  # other brokers committed in between, and the image must not skip their changes

    async def _catch_up(self) -> asyncio.Task[None] | None:
        snapshot = await self._store.load(records.ROOT)
        if snapshot.revision < self._image.revision:  # returned by a store member that lags behind
            return None
        return self._take_over(snapshot)

    def _take_over(self, snapshot: Snapshot) -> asyncio.Task[None]:
        news = sorted(
            (entry for entry in snapshot.entries.values() if entry.version != self._image.version_of(entry.key)),
            key=lambda entry: entry.version,
        )
        writes: dict[str, bytes | None] = dict.fromkeys(self._image.fact_keys() - snapshot.entries.keys())
        writes |= {entry.key: entry.value for entry in news}
        versions = {entry.key: entry.version for entry in news}
        return self._delivery.deliver(self._image.apply(snapshot.revision, writes, versions))


def repeated(keys: Iterable[Key]) -> set[Key]:
    return {key for key, count in Counter(keys).items() if count > 1}


def named_twice() -> RequestError:
    return RequestError("named more than once in the request; nothing of it was done")


def _batch_length(plan: Sequence[Pinned[Any]]) -> int:
    """Returns how many decisions, from the first one, fit into one commit. None is ever split."""
    keys: set[str] = set()
    bytes_written = 0
    for at, decision in enumerate(plan):
        keys |= decision.writes.keys() | decision.expect.keys()
        bytes_written += sum(len(value) for value in decision.writes.values() if value is not None)
        if at and (len(keys) > KEYS_PER_BATCH_MAX or bytes_written > BYTES_PER_BATCH_MAX):
            return at
    return len(plan)
