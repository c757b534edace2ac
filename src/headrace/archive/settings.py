"""Archive settings of a topic, read from its topic configs.

The configs and the table are the only state. Any host that reaches the cluster can run the archive worker, and
deleting the topic deletes its settings.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.archive.decode import ValueSchema
from headrace.client.core.errors import KafkaApiError
from headrace.client.sync import configs
from headrace.client.sync.client import Cluster, TopicView
from headrace.config.definition import nearest
from headrace.model.errors import ErrorCode, HeadraceError

log = logging.getLogger(__name__)

TABLE, SCHEMA, UNTIL, GUARD = "archive.table", "archive.schema", "archive.until", "archive.before.delete"
KEYS = (TABLE, SCHEMA, UNTIL, GUARD)


class ArchiveSettings(NamedTuple):
    topic: str
    topic_id: str
    kind: str  # delta or iceberg
    target: str
    decoding: ValueSchema | None
    guards: bool  # retention waits for the archive (retention hold)
    until: Mapping[int, int]  # offset of the retention hold per partition

    @property
    def owner(self) -> str:
        """Owner name of the table's commits. Contains the topic id, so that a re-created topic is never taken for the
        old one.
        """
        return f"headrace-archive-{self.topic_id}"

    @property
    def group(self) -> str:
        """The consumer group to which archived offsets are committed, so that Kafka tools show the archive's lag."""
        return f"headrace-archive-{self.topic}"


class NoSuchTopic(KafkaApiError):
    def __init__(self, cluster: Cluster, name: str) -> None:
        there = cluster.patiently("listing topics", lambda: cluster.topics(None))
        close = nearest(name, there)
        hint = f"; did you mean {close}?" if close else ""
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}{hint}")


def topic_view(cluster: Cluster, name: str) -> TopicView:
    found = cluster.patiently("finding the topic", lambda: cluster.topics([name])).get(name)
    if found is None:
        raise NoSuchTopic(cluster, name)
    return found


def read_settings(cluster: Cluster, topic: TopicView) -> ArchiveSettings | None:
    """Returns the settings of a topic; None if it has no archive."""
    answer = cluster.patiently(
        f"reading the configs of {topic.name}",
        lambda: configs.describe(cluster.any_connection(), configs.ResourceType.TOPIC, topic.name, KEYS),
    )
    if isinstance(answer, configs.ConfigError):
        raise KafkaApiError(answer.code, answer.message)
    values = {entry.name: entry.value or "" for entry in answer}
    kind, _, target = values.get(TABLE, "").partition(":")
    if not kind:
        return None
    until = dict(pair.split(":") for pair in values.get(UNTIL, "").split(",") if pair)
    return ArchiveSettings(
        topic.name,
        str(topic.topic_id),
        kind,
        target,
        ValueSchema.parse(values.get(SCHEMA, "")),
        values.get(GUARD) == "true",
        {int(partition): int(offset) for partition, offset in until.items()},
    )


def change(cluster: Cluster, topic: str, wanted: Mapping[str, str], unwanted: tuple[str, ...] = ()) -> None:
    refusal = cluster.patiently(
        f"changing the configs of {topic}",
        lambda: configs.alter(cluster.any_connection(), configs.ResourceType.TOPIC, topic, wanted, unwanted),
    )
    if refusal is not None:
        raise KafkaApiError(refusal.code, refusal.message)


def archived_topics(cluster: Cluster) -> list[ArchiveSettings]:
    topics = cluster.patiently("listing topics", lambda: cluster.topics(None))
    return readable_settings(cluster, [name for name, topic in sorted(topics.items()) if not topic.is_internal])


def readable_settings(cluster: Cluster, names: Sequence[str]) -> list[ArchiveSettings]:
    """Returns the settings of those topics that have an archive. Topics with invalid configs are logged and skipped."""
    found = []
    for name in names:
        try:
            settings = read_settings(cluster, topic_view(cluster, name))
        except (HeadraceError, KafkaApiError, ValueError) as error:
            log.error("%s is not archived, its configs cannot be used: %s", name, error)
            continue
        if settings is not None:
            found.append(settings)
    return found


def rendered(ends: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{ends[partition]}" for partition in sorted(ends))
