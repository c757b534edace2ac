"""The port through which cluster facts are kept: small values under path-like keys, one revision for all.

Decides what every implementation promises, and nothing about how it keeps the promise:

- Every commit that changes something gets the next revision. A key's version is the revision of the commit
  that wrote it last; version 0 means that the key is not there.
- A commit happens as a whole or not at all. Once it has returned, it survives whatever the implementation
  survives (the process for SQLite, a minority of machines for etcd).
- A load may be behind the newest commit, where the store is on other machines; it is never behind what the
  same store object has shown before. So a decision rests on the versions that its commit expects, not on a load.
- A watch shows every commit after a revision, in order, each exactly once and whole; if it cannot, it says
  Compacted, and the reader loads again (`metadata/watch.py` does it for whoever wants all news).
- Keys written under a lease vanish together when the lease ends. A lease lasts at least as long as was asked for,
  counted from when the store heard of it; `metadata/lease.py` keeps one alive.
- A store that cannot be reached says Unavailable: nothing was changed. Only a commit may also say OutcomeUnknown:
  it may have happened, or happen still. (A lease that was granted and not heard of runs out.)
- A store that does not let this node in says StoreAccessDenied: that is for a person to put right.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, NewType, Protocol

from headrace.model.errors import ErrorCode, HeadraceError

LeaseId = NewType("LeaseId", int)

# etcd refuses a transaction with more writes or more comparisons than this (its default --max-txn-ops); what one
# implementation cannot do in one commit, nobody may rely on. It holds for what is expected and for what is written.
KEYS_PER_COMMIT_MAX = 128


class Entry(NamedTuple):
    key: str
    value: bytes
    version: int


class Snapshot(NamedTuple):
    """All entries under a prefix as they were together at `revision`."""

    entries: dict[str, Entry]
    revision: int


class Change(NamedTuple):
    """One commit as a watcher sees it: what it wrote under the watched prefix; None means deleted."""

    revision: int
    writes: Mapping[str, bytes | None]

    def under(self, prefix: str) -> "Change | None":
        """The part of the change that lies under the prefix, if any does."""
        writes = {key: value for key, value in self.writes.items() if key.startswith(prefix)}
        return Change(self.revision, writes) if writes else None


class Conflict(HeadraceError):
    """Someone else changed the key first: load again, decide again."""

    # The one code that makes every admin client refresh its metadata and try once more.
    code = ErrorCode.NOT_CONTROLLER
    retriable = True

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} has changed since it was read; read it again and retry")
        self.key = key


class Compacted(HeadraceError):
    """The changes after that revision are no longer all there: load a snapshot, then watch from it."""

    retriable = True


class LeaseExpired(HeadraceError):
    """The lease is over, and with it every key that was written under it."""


class Unavailable(HeadraceError):
    """The store cannot be reached now, and nothing was changed; later, or from another broker, it may be."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True


class OutcomeUnknown(HeadraceError):
    """The store went away in the middle of a commit: it may have happened, or happen still.

    Load again and decide again: the new commit expects versions, so that only one of the two can count.
    """

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class StoreAccessDenied(HeadraceError):
    """The store does not let this node in, or not do what it must: wrong user, password, certificate or rights."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class StoreClosed(HeadraceError):
    """The store was closed; nothing can be read from it or written to it any more."""


def check_size(expect: Mapping[str, int], writes: Mapping[str, bytes | None]) -> None:
    """A commit that is too large is our bug, whichever store it goes to."""
    most = max(len(expect), len(writes))
    if most > KEYS_PER_COMMIT_MAX:
        raise ValueError(f"{most} keys in one commit; at most {KEYS_PER_COMMIT_MAX} are allowed")


class Store(Protocol):
    async def load(self, prefix: str) -> Snapshot:
        """Everything under the prefix, as of one revision."""

    async def commit(
        self,
        expect: Mapping[str, int],
        writes: Mapping[str, bytes | None],
        lease: LeaseId | None = None,
    ) -> int:
        """Write (None deletes) if every expected key has its expected version, 0 for absent; else Conflict.

        The revision of the commit; the present one if there was nothing to change. A commit without writes is how
        to make sure that the expected versions are still the newest ones.
        """

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        """Every change under the prefix after that revision; ends when the store is closed."""

    async def grant(self, ttl_ms: int) -> LeaseId:
        """A lease that lasts this long unless it is kept alive."""

    async def keep_alive(self, lease: LeaseId) -> None:
        """The lease's time starts anew; LeaseExpired if it is over already."""

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease now. Ending one that is over changes nothing."""

    async def close(self) -> None:
        """Let go of everything. What was committed stays where the implementation keeps it."""
