"""Replication throttling: rate limit for replicas that are not in sync.

Kafka's tools list the throttled replicas on the topic (`partition:broker` pairs, or `*`) and set the rate on the
broker. In-sync replicas are never throttled, because producers wait for them. Time is an argument.
"""

from collections.abc import Collection

EVERY_REPLICA = "*"


def is_listed(listed: Collection[str], partition: int, broker: int) -> bool:
    return bool(listed) and (EVERY_REPLICA in listed or f"{partition}:{broker}" in listed)


class ReplicationQuota:
    """Rate limiter: replicated bytes are a debt that decreases at the rate.

    Replication continues when there is none.
    """

    def __init__(self) -> None:
        self._bytes_per_s: int | None = None  # no limit
        self._free_ms = 0.0  # time at which the debt is paid off

    def limit(self, bytes_per_s: int | None) -> None:
        if bytes_per_s != self._bytes_per_s:
            self._bytes_per_s = bytes_per_s
            self._free_ms = 0.0

    def copied(self, count: int, now_ms: int) -> None:
        if self._bytes_per_s is not None:
            # At a rate of 0, replication stops after this, practically for ever.
            self._free_ms = max(self._free_ms, now_ms) + 1000 * count / max(self._bytes_per_s, 1e-9)

    def wait_ms(self, now_ms: int) -> float:
        """Returns the time until more may be replicated; 0 if it may be now."""
        if self._bytes_per_s is None:
            return 0.0
        return max(self._free_ms - now_ms, 0.0)
