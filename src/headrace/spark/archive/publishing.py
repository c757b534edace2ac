"""Tells the broker up to where a topic is archived, so that its retention may go on to there and no further.

Not at once: a query that has just looked at the table will ask the topic for what follows, and has to find it.
"""

import time
from collections import deque

from headrace.client.blocking.cluster import Cluster
from headrace.spark.archive.coverage import Coverage
from headrace.spark.archive.settings import UNTIL, ArchiveSettings, change, rendered

# Longer than a query takes from looking at the table to reading the topic; retention can wait so long.
GRACE_S = 300.0
# A config is a fact that every broker hears of: often enough for retention, which looks every five minutes.
EVERY_S = 15.0


class Published:
    def __init__(self, cluster: Cluster, settings: ArchiveSettings, grace_s: float) -> None:
        self._cluster, self._topic = cluster, settings.topic
        self._grace_s = grace_s
        self._told = dict(settings.until)
        self._told_at = float("-inf")
        self._waiting: deque[tuple[float, Coverage]] = deque()

    def publish(self, coverage: Coverage) -> None:
        now = time.monotonic()
        if not self._waiting or self._waiting[-1][1] != coverage:
            self._waiting.append((now, coverage))
        while len(self._waiting) > 1 and now - self._waiting[1][0] >= self._grace_s:
            self._waiting.popleft()
        since, ripe = self._waiting[0]
        is_young, is_soon = now - since < self._grace_s, now - self._told_at < min(EVERY_S, self._grace_s)
        if is_young or is_soon or ripe.ends == self._told:
            return
        change(self._cluster, self._topic, {UNTIL: rendered(ripe.ends)})
        self._told, self._told_at = dict(ripe.ends), now
