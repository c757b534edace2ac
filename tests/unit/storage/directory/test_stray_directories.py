"""Names of directories that were set aside: short enough for the file system, and parsed back."""

from uuid import UUID

import pytest

from headrace.model.ids import TopicPartition
from headrace.storage.directory.stray_directories import (
    DELETE_SUFFIX,
    NAME_BYTES_MAX,
    STRAY_SUFFIX,
    AsideName,
    parse_aside_name,
)

UNIQUE = UUID(int=7)


@pytest.mark.parametrize("suffix", [DELETE_SUFFIX, STRAY_SUFFIX])
@pytest.mark.parametrize("index", [0, 10, 99_999])
@pytest.mark.parametrize("topic", ["t", "a-1.b-2", "l" * 204, "l" * 214, "l" * 249])
def test_aside_name_fits_and_keeps_the_partition(topic: str, index: int, suffix: str) -> None:
    text = str(AsideName(TopicPartition(topic, index), UNIQUE, suffix))
    assert len(text) <= NAME_BYTES_MAX
    parsed = parse_aside_name(text)
    assert parsed is not None
    assert topic.startswith(parsed.partition.topic)
    assert len(text) == NAME_BYTES_MAX or parsed.partition.topic == topic
    assert parsed[1:] == (UNIQUE, suffix)
    assert parsed.partition.partition == index
    assert str(parsed) == text


@pytest.mark.parametrize(
    "name",
    [
        "backup-delete",
        "t-0",
        "t-0-stray",
        f"t.{UNIQUE.hex}-stray",
        f"-0.{UNIQUE.hex}-stray",
        f"t-\u00b2.{UNIQUE.hex}-stray",
        f"t-0.{UNIQUE.hex[1:]}-stray",
        f"t-0.{UNIQUE.hex}-future",
    ],
)
def test_name_of_another_form_is_not_parsed(name: str) -> None:
    assert parse_aside_name(name) is None
