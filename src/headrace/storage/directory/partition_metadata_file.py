"""The `partition.metadata` file: the topic id of a partition directory.

A topic that was deleted and created again has the same name and another id. The file distinguishes their directories.

Also the text form of ids in all of Kafka's files: base64 of the 16 bytes, URL alphabet, no padding.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from uuid import UUID

from headrace.model.errors import CorruptLog
from headrace.model.ids import ZERO_UUID
from headrace.storage.io.file_system import FileSystem

FILE_NAME = "partition.metadata"
VERSION = 0


_SEGMENT = re.compile(r"[0-9]{20}\.log")


def holds_partition(names: Iterable[str]) -> bool:
    """Returns whether a directory with these files was created for a partition: it has its metadata or a segment."""
    return any(name == FILE_NAME or _SEGMENT.fullmatch(name) for name in names)


def has_segment(names: Iterable[str]) -> bool:
    return any(map(_SEGMENT.fullmatch, names))


def uuid_to_text(uuid: UUID) -> str:
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()


def uuid_from_text(text: str) -> UUID:
    """Parses an id. Raises ValueError for every text that `uuid_to_text` does not write."""
    uuid = UUID(bytes=urlsafe_b64decode(text + "=="))
    if uuid_to_text(uuid) != text:
        raise ValueError(f"{text!r} is not an id in base64")
    return uuid


def read_topic_id(files: FileSystem, directory: str) -> UUID | None:
    """Returns the topic id of a directory; None if it has no such file yet."""
    path = f"{directory}/{FILE_NAME}"
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    try:
        topic_id = _parse(data.decode())
    except ValueError as error:
        raise CorruptLog(f"{path} cannot be read: {error}") from error
    if topic_id == ZERO_UUID:
        raise CorruptLog(f"{path} names no topic")
    return topic_id


def write_topic_id(files: FileSystem, directory: str, topic_id: UUID, *, sync: bool = True) -> None:
    text = f"version: {VERSION}\ntopic_id: {uuid_to_text(topic_id)}"
    files.replace(f"{directory}/{FILE_NAME}", text.encode(), sync=sync)


def _parse(text: str) -> UUID:
    lines = text.splitlines()
    if len(lines) < 2:
        raise ValueError("it has no two lines")
    version_name, _, version = lines[0].partition(":")
    id_name, _, topic_id = lines[1].partition(":")
    # A later version may add lines after these two, but not change them.
    if version_name != "version" or id_name != "topic_id" or int(version) < VERSION:
        raise ValueError(f"it begins with {lines[:2]}")
    return uuid_from_text(topic_id.strip())
