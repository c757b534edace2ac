"""Keys, revisions, recent changes and leases in memory: the common part of the embedded stores.

Pure; performs no I/O, never waits, and receives the time as an argument. `check` decides whether a commit is valid
and what it changes; `apply` makes the change.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from headrace.metadata.store import (
    Change,
    Compacted,
    Conflict,
    Entry,
    LeaseExpired,
    LeaseId,
    Snapshot,
    check_size,
)

# How far a watcher may fall behind before it has to load again: in commits, and in bytes so that a few topics with
# thousands of partitions do not pin memory. The newest commit is always kept.
HISTORY_COMMITS_MAX = 1024
HISTORY_BYTES_MAX = 4 * 1024 * 1024


class Lease:
    __slots__ = ("deadline_ms", "keys", "ttl_ms")

    def __init__(self, ttl_ms: int, deadline_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.deadline_ms = deadline_ms
        self.keys: set[str] = set()


class KeyValueState:
    def __init__(self, entries: Iterable[Entry] = (), revision: int = 0, last_lease: int = 0) -> None:
        """Leases are numbered after `last_lease`: holders that outlive a store must not meet the same number again."""
        self.revision = revision
        self.leases: dict[LeaseId, Lease] = {}
        self._entries = {entry.key: entry for entry in entries}
        self._lease_of_key: dict[str, LeaseId] = {}
        self._last_lease = last_lease
        self._history: deque[Change] = deque()
        self._history_bytes = 0
        self._history_starts_after = revision

    def snapshot(self, prefix: str) -> Snapshot:
        entries = {key: entry for key, entry in self._entries.items() if key.startswith(prefix)}
        return Snapshot(entries, self.revision)

    def check(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None
    ) -> Change | None:
        """Returns the change of this commit, None if it has none. Raises Conflict or LeaseExpired."""
        check_size(expect, writes)
        if lease is not None and lease not in self.leases:
            raise LeaseExpired(f"lease {lease} is over")
        for key, version in expect.items():
            entry = self._entries.get(key)
            if (entry.version if entry else 0) != version:
                raise Conflict(key)
        effective = {key: value for key, value in writes.items() if value is not None or key in self._entries}
        return Change(self.revision + 1, effective) if effective else None

    def apply(self, change: Change, lease: LeaseId | None = None) -> None:
        """Applies a change that was checked and, in a durable store, persisted."""
        assert change.revision == self.revision + 1, "changes are applied in order, without gaps"
        self.revision = change.revision
        for key, value in change.writes.items():
            self._detach(key)
            if value is None:
                del self._entries[key]
                continue
            self._entries[key] = Entry(key, value, change.revision)
            if lease is not None:
                self._lease_of_key[key] = lease
                self.leases[lease].keys.add(key)
        self._remember(change)

    def changes_after(self, revision: int) -> list[Change]:
        """Returns every commit after the revision, oldest first.

        Raises Compacted if some of them are no longer kept.
        """
        if revision > self.revision:
            raise Compacted(
                f"revision {revision} is of another store, this one has come to {self.revision}; load again"
            )
        if revision < self._history_starts_after:
            raise Compacted(
                f"changes after revision {revision} are compacted, the oldest available is"
                f" {self._history_starts_after + 1}; load again"
            )
        newest_first = []
        for change in reversed(self._history):
            if change.revision <= revision:
                break
            newest_first.append(change)
        return newest_first[::-1]

    def grant(self, ttl_ms: int, now_ms: int) -> LeaseId:
        if ttl_ms <= 0:
            raise ValueError(f"a lease of {ttl_ms} ms is over before it begins")
        self._last_lease += 1
        lease = LeaseId(self._last_lease)
        self.leases[lease] = Lease(ttl_ms, now_ms + ttl_ms)
        return lease

    def keep_alive(self, lease: LeaseId, now_ms: int) -> None:
        if lease not in self.leases:
            raise LeaseExpired(f"lease {lease} is over")
        self.leases[lease].deadline_ms = now_ms + self.leases[lease].ttl_ms

    def keys_of(self, leases: Iterable[LeaseId]) -> list[str]:
        return sorted(key for lease in leases if lease in self.leases for key in self.leases[lease].keys)

    def end(self, leases: Iterable[LeaseId]) -> None:
        """Removes leases whose keys have been deleted."""
        for lease in leases:
            ended = self.leases.pop(lease, None)
            assert ended is None or not ended.keys, "a lease goes after its keys"

    def expired_leases(self, now_ms: int) -> list[LeaseId]:
        return [lease for lease, state in self.leases.items() if state.deadline_ms <= now_ms]

    def next_deadline_ms(self) -> int | None:
        return min((lease.deadline_ms for lease in self.leases.values()), default=None)

    def _detach(self, key: str) -> None:
        lease = self._lease_of_key.pop(key, None)
        if lease is not None:
            self.leases[lease].keys.discard(key)

    def _remember(self, change: Change) -> None:
        self._history.append(change)
        self._history_bytes += _size(change)
        while len(self._history) > 1 and (
            len(self._history) > HISTORY_COMMITS_MAX or self._history_bytes > HISTORY_BYTES_MAX
        ):
            forgotten = self._history.popleft()
            self._history_bytes -= _size(forgotten)
            self._history_starts_after = forgotten.revision


def _size(change: Change) -> int:
    return sum(len(key) + len(value or b"") for key, value in change.writes.items())
