"""A record that a group's member was given, as JSON shows it."""

from typing import TYPE_CHECKING, Any

from headrace.client.message_headers import headers_of
from headrace.gateway.encoding import Format, shown
from headrace.records.record import Record

if TYPE_CHECKING:
    from confluent_kafka import Message


def delivered(message: "Message", format_: Format) -> dict[str, Any]:
    kind, timestamp_ms = message.timestamp()
    headers = tuple((name, _bytes(value)) for name, value in headers_of(message))
    record = Record(
        message.offset() or 0, timestamp_ms if kind else -1, _bytes(message.key()), _bytes(message.value()), headers
    )
    return {"topic": message.topic(), "partition": message.partition(), **shown(record, format_)}


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
