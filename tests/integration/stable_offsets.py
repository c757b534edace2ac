"""Waiting for the end of a transaction: its coordinator answers before the markers are in the partitions."""

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.patience import until

PATIENCE_S = 60.0


def until_stable(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """Returns when `read_committed` consumers may read everything below the offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    place = TopicPartition(topic, partition)

    def is_stable() -> bool:
        asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
        return bool(asked[place].result(PATIENCE_S).offset == offset)

    until(is_stable, f"the last stable offset of {topic}-{partition} is {offset}", PATIENCE_S)
