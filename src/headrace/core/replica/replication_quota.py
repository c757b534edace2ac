"""How fast replicas that are not in sync may be copied: a rate, kept as a debt that time pays off.

Kafka's tools list the throttled replicas on the topic (`partition:broker` pairs, or `*`) and set the rate on the
broker. Who is in sync is never held back: producers wait for those. Time is handed in.
"""

from collections.abc import Collection

EVERY_REPLICA = "*"


def is_listed(listed: Collection[str], partition: int, broker: int) -> bool:
    return bool(listed) and (EVERY_REPLICA in listed or f"{partition}:{broker}" in listed)


class ReplicationQuota:
    """Whoever copies goes into debt by what was copied, and copies again when the rate has paid it off."""

    def __init__(self) -> None:
        self._bytes_per_s: int | None = None  # no limit
        self._free_ms = 0.0  # from when on there is no debt

    def limit(self, bytes_per_s: int | None) -> None:
        if bytes_per_s != self._bytes_per_s:
            self._bytes_per_s = bytes_per_s
            self._free_ms = 0.0

    def copied(self, count: int, now_ms: int) -> None:
        if self._bytes_per_s is not None:
            # At a rate of nothing, nothing is copied after this for as long as anybody could wait.
            self._free_ms = max(self._free_ms, now_ms) + 1000 * count / max(self._bytes_per_s, 1e-9)

    def wait_ms(self, now_ms: int) -> float:
        """How long to wait before more may be copied; 0 if it may be now."""
        if self._bytes_per_s is None:
            return 0.0
        return max(self._free_ms - now_ms, 0.0)
