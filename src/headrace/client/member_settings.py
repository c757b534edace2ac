"""What makes a member: its group and topics, and how much librdkafka may hold for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.client.factory import UNUSED_GROUP, make_consumer

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

# What librdkafka may hold for one member: a thousand members must fit into memory.
QUEUED_KIB_MAX = 1024
FETCH_BYTES_MAX = 256 * 1024
# librdkafka has one fetch under way per broker: partitions that are assigned while it waits are not asked for until it
# returns. With 5 s here the first events of a stream came after 3.7 s in the median, with 500 ms after 16 ms.
FETCH_WAIT_MS_MAX = 500
# Kafka's default. The poller asks all the time, so this only ends a member whose loop is stuck.
POLL_INTERVAL_MS_MAX = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    topics: tuple[str, ...]
    client_id: str
    group: str = UNUSED_GROUP  # for readers without a group
    instance_id: str | None = None
    session_timeout_ms: int = 30_000
    offset_reset: str = "earliest"
    committed_only: bool = True
    buffered_max: int = 500


def make_member(
    bootstrap: str,
    settings: MemberSettings,
    on_commit: "Callable[[KafkaError | None, list[TopicPartition]], None]",
    *,
    positioned_by_group: bool,
) -> "Consumer":
    """`on_commit` gets the outcome of each commit, inside `consume`.

    A reader that is given positions never skips: one that is deleted is followed by the first one there is."""
    overrides: dict[str, Any] = {
        "client.id": settings.client_id,
        "group.id": settings.group,
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": max(min(3_000, settings.session_timeout_ms // 3), 1),
        "max.poll.interval.ms": max(POLL_INTERVAL_MS_MAX, settings.session_timeout_ms),
        "enable.partition.eof": False,
        "auto.offset.reset": settings.offset_reset if positioned_by_group else "earliest",
        "isolation.level": "read_committed" if settings.committed_only else "read_uncommitted",
        # What every classic client knows, so that Java's and ours can share a group.
        "partition.assignment.strategy": "range,roundrobin",
        "queued.max.messages.kbytes": QUEUED_KIB_MAX,
        "fetch.message.max.bytes": FETCH_BYTES_MAX,
        "fetch.wait.max.ms": FETCH_WAIT_MS_MAX,
        "on_commit": on_commit,
    }
    if settings.instance_id is not None:
        overrides["group.instance.id"] = settings.instance_id
    return make_consumer(bootstrap, overrides)
