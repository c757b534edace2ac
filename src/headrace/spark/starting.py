"""Where a read starts and ends, as the user writes it: a word, offsets as JSON, or times. Pure: text in, values out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition

EARLIEST_WORD, LATEST_WORD = "earliest", "latest"
# Offsets in JSON that stand for the words, as in the connector.
LATEST_NUMBER, EARLIEST_NUMBER = -1, -2


class Strategy(Enum):
    """What a start by time means where no record is that new."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One of the first four is set. `offsets` and `times` must name every partition that is read."""

    word: str | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    time: int | None = None
    strategy: Strategy = Strategy.ERROR
    side: str = "starting"


def bound_of(
    *,
    offsets: str | None = None,
    by_timestamp: str | None = None,
    timestamp: str | None = None,
    strategy: Strategy = Strategy.ERROR,
    side: str = "starting",
    default: str = LATEST_WORD,
) -> Bound:
    """Times go before offsets and one time before many, as in the connector."""
    if timestamp is not None:
        return Bound(time=_milliseconds(timestamp, f"{side}Timestamp"), strategy=strategy, side=side)
    if by_timestamp is not None:
        times = _by_partition(by_timestamp, f"{side}OffsetsByTimestamp", lowest=0)
        return Bound(times=times, strategy=strategy, side=side)
    text = (offsets or default).strip()
    if text.lower() in (EARLIEST_WORD, LATEST_WORD):
        return Bound(word=text.lower(), side=side)
    by_offset = _by_partition(text, f"{side}Offsets", lowest=EARLIEST_NUMBER)
    if side == "ending" and EARLIEST_NUMBER in by_offset.values():
        raise InvalidConfig(
            f"endingOffsets: {EARLIEST_NUMBER} means earliest, and a query that ends there reads nothing"
        )
    return Bound(offsets=by_offset, side=side)


def _milliseconds(text: str, name: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidConfig(f"{name}: {text!r} is not a time in milliseconds since 1970")
    return int(text)


def _by_partition(text: str, name: str, *, lowest: int) -> dict[TopicPartition, int]:
    example = '{"topic": {"0": 23, "1": -2}}'
    try:
        parsed: Any = json.loads(text)
        found = {
            TopicPartition(topic, int(partition)): int(number)
            for topic, partitions in parsed.items()
            for partition, number in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise InvalidConfig(f"{name}: {text!r} is neither earliest, latest nor JSON such as {example}") from None
    wrong = [number for number in found.values() if number < lowest]
    if wrong or not found:
        raise InvalidConfig(
            f"{name}: {text!r} {f'holds {wrong[0]}' if wrong else 'is empty'}; write JSON such as {example}"
        )
    return found
