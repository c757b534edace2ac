"""Formats of the checkpoint and marker files of a data directory.

    recovery-point-offset-checkpoint       every record below is synced
    log-start-offset-checkpoint            log start offsets, after DeleteRecords or retention
    replication-offset-checkpoint          high watermarks
    cleaner-offset-checkpoint              offsets up to which logs are compacted
    .kafka_cleanshutdown                   exists after a clean shutdown, until the next start
    .headrace_boot                         boot id of the host under the last process; Kafka has no such file
    .headrace_registrations                count of the broker's registrations and clean stops with it; Kafka has none
    meta.properties                        cluster, node and directory id

All formats but that of `.headrace_boot` and `.headrace_registrations` are Kafka's. A file is always replaced as a
whole.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import CorruptLog
from headrace.model.ids import TopicPartition
from headrace.storage.directory.partition_metadata_file import uuid_from_text, uuid_to_text
from headrace.storage.io.file_system import FileSystem

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT = ".headrace_boot"
REGISTRATIONS = ".headrace_registrations"
META_PROPERTIES = "meta.properties"

CHECKPOINT_VERSION = 0
CLEAN_SHUTDOWN_VERSION = 0
META_VERSION = 1
NO_BROKER_EPOCH = -1


def read_rows(files: FileSystem, path: str, columns: int, *, has_checksum: bool = True) -> list[list[str]]:
    """Returns the rows of a checkpoint file: a line with the version, one with the count, then one line per row.

    Unless a row has a checksum, raises CorruptLog if the last line has no line feed.
    """
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise CorruptLog(f"{path} is not text") from error
    lines = text.splitlines()
    if len(lines) < 2:
        if lines and lines[0] != str(CHECKPOINT_VERSION):
            raise CorruptLog(f"{path} has the unknown version {lines[0]!r}")
        return []  # Kafka creates the file empty and writes it later
    if lines[0] != str(CHECKPOINT_VERSION):
        raise CorruptLog(f"{path} has the unknown version {lines[0]!r}")
    if not (has_checksum or text.endswith("\n")):
        raise CorruptLog(f"{path} ends within a row")
    rows = [line.split() for line in lines[2:]]
    if lines[1] != str(len(rows)) or any(len(row) != columns for row in rows):
        raise CorruptLog(f"{path} should have {lines[1]!r} rows of {columns} columns, and has not")
    return rows


def write_rows(files: FileSystem, path: str, rows: Iterable[str], *, sync: bool = True) -> None:
    body = list(rows)
    lines = [str(CHECKPOINT_VERSION), str(len(body)), *body, ""]
    files.replace(path, "\n".join(lines).encode(), sync=sync)


def read_offsets(files: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Returns the offsets in a checkpoint file; empty if there is no file. Raises CorruptLog."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partition, offset in read_rows(files, path, columns=3)
        }
    except ValueError as error:
        raise CorruptLog(f"{path} cannot be read: {error}") from error


def write_offsets(files: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    write_rows(files, path, (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()))


# ── Clean shutdown ──


def mark_clean_shutdown(files: FileSystem, directory: str, broker_epoch: int = NO_BROKER_EPOCH) -> None:
    text = f'{{"version":{CLEAN_SHUTDOWN_VERSION},"brokerEpoch":{broker_epoch}}}'
    files.replace(f"{directory}/{CLEAN_SHUTDOWN}", text.encode())


def clean_shutdown_epoch(files: FileSystem, directory: str) -> int | None:
    """Returns the broker epoch of the clean shutdown, NO_BROKER_EPOCH if unknown; None after an unclean one."""
    try:
        data = files.read(f"{directory}/{CLEAN_SHUTDOWN}")
    except FileNotFoundError:
        return None
    import json

    # The existence of the file marks the clean shutdown: older versions leave it empty.
    try:
        content = json.loads(data)
    except ValueError:
        return NO_BROKER_EPOCH
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return epoch if isinstance(epoch, int) else NO_BROKER_EPOCH


def clear_clean_shutdown(files: FileSystem, directory: str) -> None:
    """Removes the mark durably. From here on a stop is unclean until `mark_clean_shutdown`."""
    with suppress(FileNotFoundError):
        files.remove(f"{directory}/{CLEAN_SHUTDOWN}")
    files.sync_dir(directory)


def boot_before(files: FileSystem, directory: str) -> str:
    """Returns the boot id of the host under the last process that wrote here; empty if unknown."""
    try:
        return files.read(f"{directory}/{BOOT}").decode(errors="replace")
    except FileNotFoundError:
        return ""


def write_boot(files: FileSystem, directory: str, boot_id: str) -> None:
    files.replace(f"{directory}/{BOOT}", boot_id.encode())


def read_registrations(files: FileSystem, directory: str) -> int:
    """Returns the count of registrations and clean stops with this directory.

    Returns 0 if only earlier versions have written it.
    """
    path = f"{directory}/{REGISTRATIONS}"
    try:
        return int(files.read(path).decode())
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise CorruptLog(f"{path} is not a number") from error


def write_registrations(files: FileSystem, directory: str, count: int) -> None:
    files.replace(f"{directory}/{REGISTRATIONS}", str(count).encode())


# ── meta.properties ──


class MetaProperties(NamedTuple):
    cluster_id: str
    node_id: int
    directory_id: UUID


def read_meta_properties(files: FileSystem, directory: str) -> MetaProperties | None:
    path = f"{directory}/{META_PROPERTIES}"
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    try:
        values = dict(_properties(data.decode()))
        if values["version"] != str(META_VERSION):
            raise CorruptLog(f"{path} has the unknown version {values['version']!r}")
        return MetaProperties(values["cluster.id"], int(values["node.id"]), uuid_from_text(values["directory.id"]))
    except KeyError as error:
        raise CorruptLog(f"{path} lacks {error}") from error
    except ValueError as error:
        raise CorruptLog(f"{path} cannot be read: {error}") from error


def write_meta_properties(files: FileSystem, directory: str, meta: MetaProperties) -> None:
    values = {
        "cluster.id": meta.cluster_id,
        "directory.id": uuid_to_text(meta.directory_id),
        "node.id": str(meta.node_id),
        "version": str(META_VERSION),
    }
    text = "".join(f"{name}={_escaped(value)}\n" for name, value in values.items())
    files.replace(f"{directory}/{META_PROPERTIES}", text.encode())


# Characters that need an escape in a value of a Java properties file.
_ESCAPES = str.maketrans({"\\": "\\\\", ":": "\\:", "=": "\\=", "#": "\\#", "!": "\\!", " ": "\\ "})


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)


def _properties(text: str) -> Iterable[tuple[str, str]]:
    """Yields the `name=value` pairs of a Java properties file, as far as this file uses that format."""
    for line in text.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, _, value = line.partition("=")
        yield name.strip(), _unescaped(value.lstrip())


def _unescaped(value: str) -> str:
    characters = iter(value)
    return "".join(next(characters, "") if character == "\\" else character for character in characters)
