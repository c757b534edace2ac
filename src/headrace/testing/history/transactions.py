"""Waits for open transactions: a `read_committed` consumer sees nothing behind one.

A crashed client leaves its transaction open until its timeout, and a committed transaction gets its markers only a
moment later. Without this wait, a consumer takes the beginning of the transaction for the end of the partition.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.model.ids import TopicPartition

LOOK_AGAIN_S = 0.05
ANSWER_SECONDS_MAX = 10.0  # per request: the broker may be starting


def wait_until_settled(settings: Mapping[str, Any], places: Sequence[TopicPartition], seconds_max: float) -> None:
    """Returns when no transaction is open in these partitions.

    Raises TimeoutError if one still is after `seconds_max`.
    """
    deadline = time.monotonic() + seconds_max
    while (open_in := _with_open_transactions(settings, places)) and time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN_S)
    if open_in:
        raise TimeoutError(f"transactions are still open in {', '.join(map(str, open_in))} after {seconds_max:g} s")


def _with_open_transactions(settings: Mapping[str, Any], places: Sequence[TopicPartition]) -> list[TopicPartition]:
    from confluent_kafka import KafkaException

    try:
        stable, all_of_it = (_ends(settings, places, level) for level in ("read_committed", "read_uncommitted"))
    except KafkaException:
        return list(places)  # unknown: treat all as open
    return [place for place in places if stable[place] < all_of_it[place]]


def _ends(settings: Mapping[str, Any], places: Sequence[TopicPartition], isolation: str) -> dict[TopicPartition, int]:
    """Returns the end offsets at an isolation level.

    The last stable offset must be read first: an older value only seems too low.
    """
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Position

    consumer = Consumer({"group.id": "unused", **settings, "isolation.level": isolation})
    try:
        return {
            place: consumer.get_watermark_offsets(Position(*place), timeout=ANSWER_SECONDS_MAX, cached=False)[1]
            for place in places
        }
    finally:
        consumer.close()
