"""How the conditions of a case are worded, so that every table says the same thing the same way."""

from bench.brokers import Policy

IN_WORDS = {
    Policy.PAGE_CACHE: "acked from the page cache (headrace `flush.policy=replicated`, Kafka's default)",
    Policy.FSYNC: "acked after fsync (headrace's default, Kafka `flush.messages=1`)",
}


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
