"""Protocol between a broker and the metadata store of its host. Pure; performs no I/O.

    ┌────────┬───────────────────────────────┐
    │length 4│ JSON: [number, word, content] │
    └────────┴───────────────────────────────┘

The response to a request consists of messages with its number: one `answer` or `error`; for a `watch` any number of
`change` messages and then an `end` or an `error`. A `cancel` ends a watch. In JSON, each byte of a value is the
character with its code.
"""

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

from headrace.metadata.store import Change, Compacted, Conflict, Entry, LeaseExpired, Snapshot, Unavailable
from headrace.model.errors import CorruptLog, DiskFull, HeadraceError, ProtocolError, StorageError

LENGTH = Struct(">I")
# A starting broker receives all cluster metadata in one message: some 30 MB for ten thousand topics of a hundred
# partitions.
MESSAGE_BYTES_MAX = 256 * 1024 * 1024

_ERRORS: tuple[type[Exception], ...] = (
    Compacted,
    LeaseExpired,
    Unavailable,
    DiskFull,
    CorruptLog,
    StorageError,
    ValueError,
)
_ERROR_BY_NAME = {kind.__name__: kind for kind in _ERRORS}


class Message(NamedTuple):
    number: int
    word: str
    content: Any


def encode(number: int, word: str, content: Any = None) -> bytes:
    body = json.dumps([number, word, content], separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Message:
    try:
        number, word, content = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError("not a message of the metadata store") from None
    if not isinstance(number, int) or not isinstance(word, str):
        raise ProtocolError("not a message of the metadata store")
    return Message(number, word, content)


def body_length(header: bytes) -> int:
    (length,) = LENGTH.unpack(header)
    if length > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a message of {length} bytes; at most {MESSAGE_BYTES_MAX} are allowed")
    return int(length)


def writes_to_json(writes: Mapping[str, bytes | None]) -> dict[str, str | None]:
    return {key: None if value is None else value.decode("latin-1") for key, value in writes.items()}


def writes_from_json(content: Mapping[str, str | None]) -> dict[str, bytes | None]:
    return {key: None if value is None else value.encode("latin-1") for key, value in content.items()}


def change_to_json(change: Change) -> list[Any]:
    return [change.revision, writes_to_json(change.writes)]


def change_from_json(content: Any) -> Change:
    revision, writes = content
    return Change(revision, writes_from_json(writes))


def snapshot_to_json(snapshot: Snapshot) -> list[Any]:
    entries = [[key, entry.value.decode("latin-1"), entry.version] for key, entry in snapshot.entries.items()]
    return [snapshot.revision, entries]


def snapshot_from_json(content: Any) -> Snapshot:
    revision, rows = content
    return Snapshot({key: Entry(key, value.encode("latin-1"), version) for key, value, version in rows}, revision)


def error_to_json(error: Exception) -> list[str]:
    """Returns type and text of an error; types without a name in the protocol become Unavailable."""
    if isinstance(error, Conflict):
        return ["Conflict", error.key]
    kind = next((kind for kind in _ERRORS if isinstance(error, kind)), Unavailable)
    return [kind.__name__, str(error)]


def error_from_json(content: Any) -> Exception:
    kind, text = content
    if kind == "Conflict":
        return Conflict(text)
    return _ERROR_BY_NAME.get(kind, HeadraceError)(text)
