"""Interface of the metadata store: small values under path-like keys, with one revision for all.

Every implementation guarantees:

- Every commit that changes something gets the next revision. A key's version is the revision of the commit
  that wrote it last; version 0 means that the key does not exist.
- A commit is atomic. Once it has returned, it survives what the implementation survives (a process crash and a power
  loss for SQLite, the failure of a minority of members for etcd).
- A load may be behind the newest commit if the store is on other hosts. It is never behind what the same store object
  has returned before. So a decision depends on the versions that its commit expects, not on a load.
- A watch returns every commit after a revision, in order, each exactly once and complete. If it cannot, it raises
  Compacted, and the caller loads again (`metadata/watch.py` does so for callers that need all changes).
- Keys written under a lease are deleted together when the lease ends. A lease lasts at least as long as requested,
  counted from when the store received the request; `metadata/lease.py` keeps one alive.
- A store that cannot be reached raises Unavailable: nothing was changed. Only a commit may also raise OutcomeUnknown:
  it may have been executed, or may be executed later. (A granted lease whose response was lost expires.)
- A store that denies this node access raises StoreAccessDenied, which an operator has to resolve.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, NewType, Protocol

from headrace.model.errors import ErrorCode, HeadraceError

LeaseId = NewType("LeaseId", int)

# etcd rejects a transaction with more writes or more comparisons than this (its default --max-txn-ops), so that callers
# must not exceed it with any implementation. The limit applies to expected and to written keys.
KEYS_PER_COMMIT_MAX = 128


class Entry(NamedTuple):
    key: str
    value: bytes
    version: int


class Snapshot(NamedTuple):
    """All entries under a prefix at `revision`."""

    entries: dict[str, Entry]
    revision: int


class Change(NamedTuple):
    """One commit in a watch: its writes under the watched prefix; None means deleted."""

    revision: int
    writes: Mapping[str, bytes | None]

    def under(self, prefix: str) -> "Change | None":
        """Returns the part of the change under the prefix; None if there is none."""
        writes = {key: value for key, value in self.writes.items() if key.startswith(prefix)}
        return Change(self.revision, writes) if writes else None


class Conflict(HeadraceError):
    """Another commit changed the key first: the caller loads and decides again."""

    # The only code on which every admin client refreshes its metadata and retries.
    code = ErrorCode.NOT_CONTROLLER
    retriable = True

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} has changed since it was read; read it again and retry")
        self.key = key


class Compacted(HeadraceError):
    """The changes after that revision are no longer complete: load a snapshot, then watch from its revision."""

    retriable = True


class LeaseExpired(HeadraceError):
    """The lease has ended, and every key that was written under it is deleted."""


class Unavailable(HeadraceError):
    """The store cannot be reached, and nothing was changed. A retry may succeed, later or from another broker."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True


class OutcomeUnknown(HeadraceError):
    """The connection failed during a commit: it may have been executed, or may be executed later.

    The caller loads and decides again: the new commit expects versions, so that only one of the two can succeed.
    """

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class StoreAccessDenied(HeadraceError):
    """The store denies this node access or a right that it needs: wrong user, password, certificate or permissions."""

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class StoreClosed(HeadraceError):
    """The store was closed; it can no longer be read or written."""


def check_size(expect: Mapping[str, int], writes: Mapping[str, bytes | None]) -> None:
    """Raises ValueError for a commit that is too large for every store: a bug of the caller."""
    most = max(len(expect), len(writes))
    if most > KEYS_PER_COMMIT_MAX:
        raise ValueError(f"{most} keys in one commit; at most {KEYS_PER_COMMIT_MAX} are allowed")


class Store(Protocol):
    async def load(self, prefix: str) -> Snapshot:
        """Returns all entries under the prefix, at one revision."""

    async def commit(
        self,
        expect: Mapping[str, int],
        writes: Mapping[str, bytes | None],
        lease: LeaseId | None = None,
    ) -> int:
        """Writes (None deletes) if every expected key has its expected version, 0 for absent.

        Raises Conflict otherwise.

        Returns the revision of the commit, or the present one if there is nothing to change. A commit without writes
        verifies that the expected versions are still the newest ones.
        """

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        """Yields every change under the prefix after that revision. Ends when the store is closed."""

    async def grant(self, ttl_ms: int) -> LeaseId:
        """Grants a lease that lasts this long unless it is renewed."""

    async def keep_alive(self, lease: LeaseId) -> None:
        """Renews the lease for its full time. Raises LeaseExpired if it has ended."""

    async def revoke(self, lease: LeaseId) -> None:
        """Ends the lease now. Has no effect if it has ended."""

    async def close(self) -> None:
        """Releases all resources. Committed entries stay where the implementation stores them."""
