"""Names of partition directories that were renamed so that their name is free: `<topic>-<partition>.<uuid>-<state>`.

A file name has at most 255 bytes and a topic name up to 249, so that a long topic name is shortened. It only helps
operators to recognize the directory; the topic id is in `partition.metadata`.
"""

import re
from typing import NamedTuple
from uuid import UUID

from headrace.model.ids import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_BYTES_MAX = 255  # NAME_MAX of Linux file systems

_ASIDE = re.compile(r"(.+)-([0-9]+)\.([0-9a-f]{32})(-delete|-stray)")


class AsideName(NamedTuple):
    """`partition.topic` is the topic's name or, if that is long, its beginning."""

    partition: TopicPartition
    unique: UUID
    suffix: str

    def __str__(self) -> str:
        rest = f"-{self.partition.partition}.{self.unique.hex}{self.suffix}"
        return self.partition.topic[: NAME_BYTES_MAX - len(rest)] + rest


def parse_aside_name(name: str) -> AsideName | None:
    """None for a name that no partition directory gets."""
    found = _ASIDE.fullmatch(name)
    if found is None:
        return None
    topic, index, unique, suffix = found.groups()
    return AsideName(TopicPartition(topic, int(index)), UUID(unique), suffix)
