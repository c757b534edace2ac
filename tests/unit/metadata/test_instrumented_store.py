"""Which outcomes of the metadata store's calls count as a store that cannot be used."""

import pytest

from headrace.metadata.embedded import MemoryStore
from headrace.metadata.instrumented_store import READ, SESSION, WRITE, ObservedStore, StoreMetrics
from headrace.metadata.store import Conflict, LeaseExpired, LeaseId, OutcomeUnknown, StoreClosed, Unavailable
from headrace.model.errors import DiskFull
from headrace.testing import SimClock


class Failing(MemoryStore):
    failure: Exception | None = None

    async def load(self, prefix):
        self._fail()
        return await super().load(prefix)

    async def commit(self, expect, writes, lease=None):
        self._fail()
        return await super().commit(expect, writes, lease)

    async def keep_alive(self, lease):
        self._fail()
        await super().keep_alive(lease)

    def _fail(self):
        if self.failure is not None:
            raise self.failure


def pair() -> tuple[Failing, ObservedStore, StoreMetrics]:
    store, figures = Failing(SimClock()), StoreMetrics()
    return store, ObservedStore(store, figures), figures


async def fails(store: Failing, call, error: Exception) -> None:
    store.failure = error
    with pytest.raises(type(error)):
        await call
    store.failure = None


@pytest.mark.parametrize("error", [Unavailable("no majority"), OutcomeUnknown("lost")])
async def test_renewal_clears_a_write_that_found_no_store(error):
    store, observed, figures = pair()
    lease = await observed.grant(1000)
    await fails(store, observed.commit({}, {"/a": b"1"}), error)
    assert figures.failure is error
    await observed.keep_alive(lease)
    assert figures.failure is None
    assert figures.errors == {WRITE: 1}


async def test_rejected_write_stays_until_a_write_succeeds():
    store, observed, figures = pair()
    lease = await observed.grant(1000)
    await fails(store, observed.commit({}, {"/a": b"1"}), DiskFull("no space"))
    await observed.keep_alive(lease)
    assert isinstance(figures.write_failure, DiskFull)
    await observed.commit({}, {"/a": b"1"})
    assert figures.failure is None


async def test_failed_renewal_stays_until_the_store_responds():
    store, observed, figures = pair()
    lease = await observed.grant(1000)
    await fails(store, observed.keep_alive(lease), Unavailable("no majority"))
    await fails(store, observed.load("/"), Unavailable("no majority"))
    assert figures.errors == {SESSION: 1, READ: 1}
    assert figures.session_failure is not None
    await observed.load("/")  # a read may come from one member
    assert figures.session_failure is not None
    await observed.keep_alive(lease)
    assert figures.failure is None


async def test_conflict_and_expired_lease_are_responses():
    store, observed, figures = pair()
    with pytest.raises(Conflict):
        await observed.commit({"/a": 7}, {"/a": b"1"})
    with pytest.raises(LeaseExpired):
        await observed.keep_alive(LeaseId(99))
    await fails(store, observed.commit({}, {"/a": b"1"}), StoreClosed("closed"))
    assert figures.failure is None
    assert not figures.errors


async def test_watch_passes_changes_on_and_closes():
    _, observed, _ = pair()
    revision = await observed.commit({}, {"/a": b"1"})
    changes = observed.watch("/", revision - 1)
    assert (await anext(changes)).writes == {"/a": b"1"}
    await changes.aclose()
