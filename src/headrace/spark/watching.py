"""The topics of a running query, looked at before every batch: what grew, what is new, what was lost.

A topic may get partitions, be deleted, or be made anew under the same name. Each is told from the others here, and
turned into loss where offsets that the query counts on are gone.
"""

import time
from collections.abc import Set
from typing import NamedTuple

from headrace.client.blocking.cluster import Patience, TopicView
from headrace.client.factory import BrokerUnreachable
from headrace.client.refusals import Refused
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.spark import reading
from headrace.spark.locating import Locator, TopicMissing
from headrace.spark.options import ReadOptions
from headrace.spark.positions import Json, Positions, ends_of, ids_of
from headrace.spark.reading import DataLost

# Named topics are looked up every time, so that one made anew is never taken for the old one. A pattern needs the list
# of all topics, and is content with one of this age.
REFRESH_S = 1.0


class View(NamedTuple):
    """From where, and at most to where, the next batch can read."""

    starts: Positions
    ends: Positions
    ids: dict[str, str]


class TopicWatch:
    def __init__(self, locator: Locator, options: ReadOptions) -> None:
        self._locator = locator
        self._options = options
        self._topics: dict[str, TopicView] = {}
        self._looked_at = float("-inf")

    def look(self, start: Json) -> View:
        """`start` is what the last batch wrote down; empty before the first one."""
        try:
            return self._look(start)
        except TopicMissing:
            # Deleted since the topics were listed: list them anew, and then judge.
            self._looked_at = float("-inf")
            return self._look(start)

    def _look(self, start: Json) -> View:
        self._refresh()
        self._wait_for({one.topic for one in ends_of(start)})
        ids = {name: str(topic.topic_id) for name, topic in self._topics.items()}
        if not start:
            partitions = self._locator.partitions(self._topics)
            ends = self._locator.latest(partitions)
            # A start behind the end is a slip, or of a topic that was made anew since the start was written down.
            starts = self._without_regress(self._locator.resolve(self._options.start, partitions), ends)
            return View(starts, {one: max(end, starts[one]) for one, end in ends.items()}, ids)
        known = self._without_lost_topics(ends_of(start), ids_of(start), ids)
        partitions = self._locator.partitions(self._topics, all_named=self._options.fail_on_data_loss)
        ends = self._locator.latest(partitions)
        starts = {one: position for one, position in known.items() if one in ends}
        starts |= self._locator.earliest([one for one in partitions if one not in starts])
        starts = self._without_regress(starts, ends)
        return View(starts, {one: max(end, starts[one]) for one, end in ends.items()}, ids)

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._options.subscription.pattern is None or now - self._looked_at >= REFRESH_S:
            self._topics = self._locator.topics()
            self._looked_at = now

    def _wait_for(self, names: Set[str]) -> None:
        """A broker whose metadata is behind does not know all topics. One that counted as deleted by mistake would be
        read from its beginning later."""
        missing = Patience(reading.MISSING_PATIENCE_S)
        while names - self._topics.keys():
            try:
                missing.wait_after(Refused(ErrorCode.LEADER_NOT_AVAILABLE, "no such topic"), "listing topics")
            except BrokerUnreachable:
                return
            self._locator.forget()
            self._topics = self._locator.topics()

    def _without_lost_topics(self, known: Positions, old_ids: dict[str, str], ids: dict[str, str]) -> Positions:
        for name in sorted({one.topic for one in known}):
            if name not in ids:
                self._lost(f"the topic {name} is gone")
            elif old_ids.get(name, ids[name]) != ids[name]:
                self._lost(f"the topic {name} was deleted and re-created")
            else:
                continue
            known = {one: position for one, position in known.items() if one.topic != name}
        return known

    def _without_regress(self, starts: Positions, ends: Positions) -> Positions:
        """Positions beyond the end. If the log was truncated, what is there now is read from its beginning. If its
        leader holds the position, it has yet to commit what lies before, and there is nothing new until then."""
        beyond: list[TopicPartition] = [
            one for one, position in starts.items() if position > ends[one] and not self._locator.holds(one, position)
        ]
        for one in beyond:
            self._lost(f"{one} ends at {ends[one]}, before the query's position {starts[one]}")
        return {**starts, **self._locator.earliest(beyond)}

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{what}: what the query had not read of it is lost. Set failOnDataLoss to false to continue with what "
                "is there now, or start the query with a new checkpoint."
            )
