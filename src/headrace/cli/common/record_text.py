"""Text format of records: the lines that `produce` reads and `consume` prints. Pure; performs no I/O.

`consume --json` and `produce --json` use the same format, so a pipe between them copies records:

    {"key": "k", "value": "v", "headers": [["h", "x"]], "partition": 0, "timestamp": 1700000000000}

Bytes that are not UTF-8 text are {"base64": "…"}; null is null.
"""

import base64
import binascii
import json
from typing import Any, NamedTuple

from headrace.model.errors import InvalidConfig
from headrace.model.json_text import JsonText, Name, TooDeep

Headers = list[tuple[str, bytes | None]]
FIELDS = ("topic", "partition", "offset", "timestamp", "key", "headers", "value")
_IGNORED_ON_INPUT = frozenset({"topic", "offset", "timestamp_type"})
_ESCAPES = (("\\n", "\n"), ("\\t", "\t"), ("\\0", "\0"))


class BadLine(InvalidConfig):
    """A line of input that is not a record."""


class Outgoing(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = []  # noqa: RUF012 (a NamedTuple default that is never modified)
    partition: int | None = None
    timestamp: int | None = None


class Incoming(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def parse_json_record(line: bytes) -> Outgoing:
    try:
        given = line.decode()
        fields = json.loads(given, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(fields, dict) or "value" not in fields:
        raise BadLine('not a record: {"value": …} is required; key, headers, partition and timestamp are optional')
    unknown = set(fields) - set(Outgoing._fields) - _IGNORED_ON_INPUT
    if unknown:
        raise BadLine(f"unknown field {sorted(unknown)[0]!r}; known fields: {', '.join(Outgoing._fields)}")
    text = JsonText(lambda: given)
    return Outgoing(
        value=_bytes(fields["value"], text, "value"),
        key=_bytes(fields.get("key"), text, "key"),
        headers=_headers(fields.get("headers") or [], text["headers"]),
        partition=_whole(fields, "partition"),
        timestamp=_whole(fields, "timestamp"),
    )


def parse_line(line: bytes, key_separator: bytes | None) -> Outgoing:
    """Parses a line as a value, or as key, separator and value; the first separator ends the key."""
    if key_separator is None:
        return Outgoing(line)
    key, found, value = line.partition(key_separator)
    if not found:
        raise BadLine(f"missing separator {key_separator.decode(errors='replace')!r} between key and value")
    return Outgoing(value, key)


def parse_header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadLine(f"{text!r} is not a header; write NAME=VALUE")
    return name, value.encode()


def as_json(record: Incoming) -> dict[str, Any]:
    return record._asdict() | {
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def render(record: Incoming, template: str) -> bytes:
    """Fills in the {fields} of the template; keys and values are inserted as raw bytes."""
    out = bytearray()
    for part in _template_parts(template):
        out += part if isinstance(part, bytes) else _field(record, part[0])
    return bytes(out)


def check_template(template: str) -> None:
    _template_parts(template)


def _template_parts(template: str) -> list[bytes | tuple[str]]:
    for written, meant in _ESCAPES:
        template = template.replace(written, meant)
    parts: list[bytes | tuple[str]] = []
    rest = template
    while "{" in rest:
        before, _, rest = rest.partition("{")
        name, closed, rest = rest.partition("}")
        if not closed or name not in FIELDS:
            raise BadLine(f"unknown field {name!r}; known fields: {', '.join(FIELDS)}")
        parts += [before.encode(), (name,)]
    return [*parts, rest.encode()]


def _field(record: Incoming, name: str) -> bytes:
    value = getattr(record, name)
    if value is None:
        return b"null"
    if name == "headers":
        return b",".join(n.encode() + b"=" + (b"null" if v is None else v) for n, v in record.headers)
    return value if isinstance(value, bytes) else str(value).encode()


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: Any, text: JsonText, part: Name) -> bytes | None:
    """Returns the bytes that a JSON value stands for; `text[part]` is its source text."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and set(value) == {"base64"}:
            return base64.b64decode(value["base64"], validate=True)
        return text[part].encoded()
    except UnicodeEncodeError:
        raise BadLine(
            'a string contains a lone surrogate, which has no UTF-8 encoding; use {"base64": "…"} for such bytes'
        ) from None
    except TooDeep as error:
        raise BadLine(str(error)) from None
    except (binascii.Error, TypeError, ValueError):
        raise BadLine("the value of base64 is not valid base64") from None


def _headers(value: Any, text: JsonText) -> Headers:
    if isinstance(value, dict):
        return [(name, _bytes(header, text, name)) for name, header in value.items()]
    if not isinstance(value, list) or not all(map(_is_pair, value)):
        raise BadLine('headers must be {"name": "value"} or [["name", "value"]]')
    return [(name, _bytes(header, text[number], 1)) for number, (name, header) in enumerate(value)]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise BadLine(f"{name} must be an integer")
    return value
