"""Resolves the user's topics and bounds to current partitions and offsets.

Sends metadata and ListOffsets requests; reads no records. Defines the meaning of a missing topic and of a timestamp
without records.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from headrace.client.core.errors import KafkaApiError
from headrace.client.reader.arrow_reader import holds
from headrace.client.reader.offsets import Positions
from headrace.client.reader.read_options import (
    EARLIEST_NUMBER,
    EARLIEST_WORD,
    LATEST_NUMBER,
    OffsetBound,
    Strategy,
    Subscription,
)
from headrace.client.sync.client import Cluster, TopicView
from headrace.client.sync.offsets import EARLIEST, LATEST, list_offsets
from headrace.model.errors import ErrorCode, InvalidConfig
from headrace.model.ids import TopicPartition


class TopicNotFoundError(LookupError):
    """A topic or partition that an option names does not exist."""


class OffsetResolver:
    """Offsets of the partitions that one query reads."""

    def __init__(self, cluster: Cluster, subscription: Subscription, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._read_committed = read_committed

    def forget(self) -> None:
        """Drops connections and metadata, so that the next request may go to another broker."""
        self._cluster.forget()

    def topics(self) -> dict[str, TopicView]:
        """Requests the metadata of the subscribed topics that exist."""
        wanted = self._subscription
        if wanted.pattern is not None:
            pattern = re.compile(wanted.pattern)
            every = self._cluster.patiently("listing topics", lambda: self._cluster.topics(None))
            # As in Spark's connector: a match anywhere in the name suffices, and internal topics never match.
            return {name: topic for name, topic in every.items() if pattern.search(name) and not topic.is_internal}
        names = wanted.topics or sorted({partition.topic for partition in wanted.assigned})
        return self._cluster.patiently("listing topics", lambda: self._cluster.topics(names))

    def partitions(self, topics: Mapping[str, TopicView], *, all_named: bool = True) -> list[TopicPartition]:
        """Returns every partition to read.

        Raises TopicNotFoundError if a named one is missing and `all_named` is set.
        """
        wanted = self._subscription
        missing: list[str] = [name for name in wanted.topics if name not in topics]
        found = [TopicPartition(name, one) for name, topic in topics.items() for one in sorted(topic.leaders)]
        if wanted.assigned:
            missing += [str(one) for one in sorted(wanted.assigned) if one not in set(found)]
            found = [one for one in found if one in wanted.assigned]
        if missing and all_named:
            raise TopicNotFoundError(
                f"{', '.join(missing)}: no such topic or partition at {self._cluster.settings.bootstrap}; "
                "create it, or correct the option that names it"
            )
        return sorted(found)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        return self._special(partitions, EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Returns the end offsets: the last stable offsets with read_committed."""
        return self._special(partitions, LATEST)

    def holds(self, partition: TopicPartition, position: int) -> bool:
        """Whether the log contains the position, committed or not."""
        return holds(self._cluster, partition, position)

    def _special(self, partitions: Iterable[TopicPartition], time: int) -> Positions:
        asked = dict.fromkeys(partitions, time)
        return {partition: offset or 0 for partition, offset in self.at(asked).items()}

    def at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        if not times:
            return {}
        try:
            return self._cluster.patiently(
                "requesting offsets",
                lambda: list_offsets(self._cluster, times, read_committed=self._read_committed),
            )
        except KafkaApiError as refusal:
            if refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._cluster.forget()
                raise TopicNotFoundError(f"{refusal}: the topic was deleted just now") from refusal
            raise

    def resolve(self, bound: OffsetBound, partitions: list[TopicPartition]) -> Positions:
        """Resolves a bound to one offset for each partition."""
        if bound.word is not None:
            return self.earliest(partitions) if bound.word == EARLIEST_WORD else self.latest(partitions)
        if bound.offsets:
            return self._given(bound, partitions)
        times = dict.fromkeys(partitions, bound.time) if bound.time is not None else dict(bound.times)
        self._check_named(f"{bound.side}OffsetsByTimestamp", times, partitions)
        found = self.at({one: time for one, time in times.items() if time is not None})
        without = [one for one, offset in found.items() if offset is None]
        if without and bound.strategy is Strategy.ERROR:
            when = datetime.fromtimestamp((times[without[0]] or 0) / 1000, UTC).isoformat()
            raise InvalidConfig(
                f"startingOffsetsByTimestampStrategy: no record of {without[0]} is as new as {when}; "
                "set it to 'latest' to start at the end of such partitions"
            )
        ends = self.latest(without)
        return {one: ends[one] if offset is None else offset for one, offset in found.items()}

    def _given(self, bound: OffsetBound, partitions: list[TopicPartition]) -> Positions:
        self._check_named(f"{bound.side}Offsets", bound.offsets, partitions)
        firsts = self.earliest(one for one, number in bound.offsets.items() if number == EARLIEST_NUMBER)
        lasts = self.latest(one for one, number in bound.offsets.items() if number == LATEST_NUMBER)
        return {one: firsts.get(one, lasts.get(one, number)) for one, number in bound.offsets.items()}

    @staticmethod
    def _check_named(option: str, given: Mapping[TopicPartition, int | None], partitions: list[TopicPartition]) -> None:
        if set(given) != set(partitions):
            left_out = sorted(set(partitions) - set(given))
            stray = sorted(set(given) - set(partitions))
            problem = f"leaves out {left_out[0]}" if left_out else f"names {stray[0]}, which is not read"
            raise InvalidConfig(f"{option}: {problem}; name every partition that is read, and no other")
