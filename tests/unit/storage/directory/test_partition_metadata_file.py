"""The topic id of a partition's folder: Kafka's bytes, and CorruptLog for anything else."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog
from headrace.storage.directory.partition_metadata_file import (
    read_topic_id,
    uuid_from_text,
    uuid_to_text,
    write_topic_id,
)
from headrace.storage.io.memory_file_system import MemoryFiles

DIRECTORY = "data/t-0"
PATH = f"{DIRECTORY}/partition.metadata"
TEXT = "sD4V-2CdRtGxQpVZkFp4uw"
TOPIC_ID = UUID("b03e15fb-609d-46d1-b142-9559905a78bb")


def test_the_bytes_are_those_that_kafka_writes() -> None:
    files = MemoryFiles()
    write_topic_id(files, DIRECTORY, TOPIC_ID)
    assert files.read(PATH) == f"version: 0\ntopic_id: {TEXT}".encode()
    assert read_topic_id(files, DIRECTORY) == TOPIC_ID


def test_a_folder_without_the_file_has_no_topic_id() -> None:
    assert read_topic_id(MemoryFiles(), DIRECTORY) is None


def test_a_later_version_with_more_lines_is_read() -> None:
    files = MemoryFiles()
    files.replace(PATH, f"version: 1\ntopic_id: {TEXT}\nnew: 5\n".encode())
    assert read_topic_id(files, DIRECTORY) == TOPIC_ID


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 0",
        b"version: x\ntopic_id: " + TEXT.encode(),
        b"version: -1\ntopic_id: " + TEXT.encode(),
        b"version: 0\ntopic: " + TEXT.encode(),
        b"version: 0\ntopic_id: " + TEXT[:-1].encode(),
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"\xff\xfe",
    ],
)
def test_anything_else_is_corrupt(data: bytes) -> None:
    files = MemoryFiles()
    files.replace(PATH, data)
    with pytest.raises(CorruptLog):
        read_topic_id(files, DIRECTORY)


@given(st.uuids())
def test_every_id_is_read_as_it_was_written(uuid: UUID) -> None:
    assert uuid_from_text(uuid_to_text(uuid)) == uuid


@given(st.text(max_size=24))
def test_other_text_is_a_value_error_and_nothing_else(text: str) -> None:
    try:
        uuid = uuid_from_text(text)
    except ValueError:
        return
    assert uuid_to_text(uuid) == text


@given(st.binary(max_size=60))
def test_random_bytes_give_an_id_or_a_corrupt_log(data: bytes) -> None:
    files = MemoryFiles()
    files.replace(PATH, data)
    try:
        assert read_topic_id(files, DIRECTORY) is not None
    except CorruptLog:
        return
