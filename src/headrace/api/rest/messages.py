"""Messages as JSON: parses produced messages and renders records. Pure; performs no I/O.

    {"key": "user-1", "value": "Hello", "partition": 0, "headers": {"trace": "1"}, "timestamp": 1700000000000}

A string is its UTF-8 text, null is null, and any other JSON value is its JSON text, as the client wrote it. Bytes
that are not UTF-8 are `key_base64` and `value_base64`, in both directions.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from headrace.api.rest.errors import Problem
from headrace.client.aio.producer import ANY_PARTITION, NOW
from headrace.client.message_headers import headers_of
from headrace.model.json_text import JsonText, Name, TooDeep
from headrace.records.record import Headers, Record

if TYPE_CHECKING:
    from confluent_kafka import Message


PARTITION_MAX = 2**31 - 1
OFFSET_MAX = TIMESTAMP_MAX = 2**63 - 1
# Headers are meant for a trace id and the like. This many already cost more than their message.
HEADERS_MAX = 1_000
_FIELDS = frozenset({"key", "key_base64", "value", "value_base64", "partition", "headers", "timestamp"})

Format = Literal["auto", "json", "base64"]


class Outgoing(NamedTuple):
    """A message to be produced."""

    value: bytes | None
    key: bytes | None
    partition: int = ANY_PARTITION
    timestamp_ms: int = NOW
    headers: list[tuple[str, bytes | None]] | None = None


class CompactText:
    """The JSON text of a document in orjson's own spelling: encoding a part of it returns the original bytes."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getitem__(self, name: Name) -> "CompactText":
        return CompactText(self._value[name])

    def encoded(self) -> bytes:
        return orjson.dumps(self._value)


Text = JsonText | CompactText


def text_of(document: bytes, value: Any) -> Text:
    """Returns the text of a document and of its parts, exactly as it was sent.

    Most programs write compact JSON, for which this is ten times as fast as finding the positions of the parts.
    """
    try:
        is_compact = orjson.dumps(value) == document
    except TypeError:  # orjson parses deeper nesting than it serializes
        is_compact = False
    return CompactText(value) if is_compact else JsonText(document.decode)


def outgoing(message: Any, text: Text) -> Outgoing:
    """Returns the message of a parsed request and its JSON text. Problem 422 if it is invalid."""
    if type(message) is not dict:
        raise _wrong('a message is an object, e.g. {"key": "user-1", "value": "Hello"}')
    if not message.keys() <= _FIELDS:
        unknown = next(iter(message.keys() - _FIELDS))
        raise _wrong(f"a message has no field {unknown!r}; its fields are {', '.join(sorted(_FIELDS))}")
    if "value" not in message and "value_base64" not in message:
        raise _wrong("a message has a value; write null for one that deletes its key on a compacted topic")
    partition = message.get("partition")
    timestamp_ms = message.get("timestamp")
    headers = message.get("headers")
    return Outgoing(
        _bytes(message, "value", text),
        _bytes(message, "key", text),
        ANY_PARTITION if partition is None else _integer("partition", partition, PARTITION_MAX),
        NOW if timestamp_ms is None else _integer("timestamp", timestamp_ms, TIMESTAMP_MAX, minimum=1),
        None if not headers else _headers(headers, text["headers"]),
    )


def _bytes(message: Mapping[str, Any], name: str, text: Text) -> bytes | None:
    given = message.get(name)
    if given is None:
        encoded = message.get(f"{name}_base64")
        return None if encoded is None else _unbase64(f"{name}_base64", encoded)
    if message.get(f"{name}_base64") is not None:
        raise _wrong(f"write {name} or {name}_base64, not both")
    return _content(name, given, text, name)


def _content(label: str, given: Any, text: Text, part: Name) -> bytes | None:
    """Returns the bytes of a JSON value; `text[part]` is that value as the client wrote it."""
    if type(given) is str:
        return _text(label, given)
    if given is None:
        return None
    try:
        return text[part].encoded()
    except TooDeep as error:
        raise _wrong(f"{label}: {error}") from None


def _text(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(f"{name} holds half a character (a lone surrogate); send such bytes as {name}_base64") from None


def _unbase64(name: str, encoded: Any) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise _wrong(f"{name} is not base64") from None


def _integer(name: str, number: Any, maximum: int, minimum: int = 0) -> int:
    if type(number) is not int or not minimum <= number <= maximum:
        raise _wrong(f"{name} is a whole number from {minimum} to {maximum}")
    return number


def _headers(given: Any, text: Text) -> list[tuple[str, bytes | None]]:
    """Parses headers: an object of strings, or a list of objects with name and value or value_base64, for repeated
    names and for bytes.
    """
    is_list = isinstance(given, list) and all(isinstance(row, dict) for row in given)
    if not is_list and not isinstance(given, dict):
        raise _wrong('headers are an object, {"trace": "1"}, or a list, [{"name": "trace", "value": "1"}]')
    if len(given) > HEADERS_MAX:
        raise _wrong(f"a message may have {HEADERS_MAX} headers")
    if is_list:
        return [_header(row, text[number]) for number, row in enumerate(given)]
    return [(_header_name(name), _content("value", value, text, name)) for name, value in given.items()]


def _header(row: Mapping[str, Any], text: Text) -> tuple[str, bytes | None]:
    name = row.get("name")
    if not isinstance(name, str) or not row.keys() <= {"name", "value", "value_base64"}:
        raise _wrong("a header has a name and a value, or a value_base64")
    return _header_name(name), _bytes(row, "value", text)


def _header_name(name: str) -> str:
    _text("a header's name", name)
    return name


def _wrong(what: str) -> Problem:
    return Problem(422, what)


# Rendering

Shown = dict[str, Any]
_LINE_ENDS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")


def shown(record: Record, format_: Format = "auto") -> Shown:
    """Returns a record as a JSON object."""
    made: Shown = {"offset": record.offset, "timestamp": record.timestamp}
    show = _SHOW[format_]
    show(made, "key", "key_base64", record.key)
    show(made, "value", "value_base64", record.value)
    if record.headers:
        made["headers"] = shown_headers(record.headers)
    return made


def shown_headers(headers: Headers) -> list[Shown]:
    rows = []
    for name, value in headers:
        row: Shown = {"name": name}
        _show_text(row, "value", "value_base64", value)
        rows.append(row)
    return rows


def _show_text(made: Shown, name: str, name_base64: str, content: bytes | None) -> None:
    try:
        made[name] = None if content is None else content.decode()
    except UnicodeDecodeError:
        made[name_base64] = base64.b64encode(content or b"").decode()


def _show_json(made: Shown, name: str, name_base64: str, content: bytes | None) -> None:
    """Renders JSON as it is stored, with its numbers unchanged, on one line: it may be part of a line of NDJSON."""
    if content is None:
        made[name] = None
        return
    try:
        orjson.loads(content)
    except orjson.JSONDecodeError:
        _show_text(made, name, name_base64, content)
    else:
        # In JSON a line break is either white space between two tokens or escaped in a string.
        made[name] = orjson.Fragment(bytes(content).translate(_LINE_ENDS_TO_SPACES))


def _show_base64(made: Shown, name: str, name_base64: str, content: bytes | None) -> None:
    if content is None:
        made[name] = None
    else:
        made[name_base64] = base64.b64encode(content).decode()


_SHOW: Mapping[str, Callable[[Shown, str, str, bytes | None], None]] = {
    "auto": _show_text,
    "json": _show_json,
    "base64": _show_base64,
}


def delivered(message: "Message", format_: Format) -> dict[str, Any]:
    kind, timestamp_ms = message.timestamp()
    headers = tuple((name, _encoded(value)) for name, value in headers_of(message))
    record = Record(
        message.offset() or 0, timestamp_ms if kind else -1, _encoded(message.key()), _encoded(message.value()), headers
    )
    return {"topic": message.topic(), "partition": message.partition(), **shown(record, format_)}


def _encoded(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
