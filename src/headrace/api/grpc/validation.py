"""Validates request fields before any request to the broker. Raises RpcError INVALID_ARGUMENT for the client."""

from headrace.api.grpc.errors import invalid

# Kafka's limit for topic names. Group and member ids are limited in Kafka only by the encoding.
TOPIC_CHARACTERS_MAX = 249
NAME_CHARACTERS_MAX = 1024


def topic_name(name: str) -> str:
    if not name:
        raise invalid("topic is missing: name the topic")
    if len(name) > TOPIC_CHARACTERS_MAX:
        raise invalid(f"topic has {len(name)} characters; names have {TOPIC_CHARACTERS_MAX} at most")
    return name


def group_name(name: str) -> str:
    if not name:
        raise invalid("group_id is missing: name the group")
    return short("group_id", name)


def short(field: str, text: str) -> str:
    if len(text) > NAME_CHARACTERS_MAX:
        raise invalid(f"{field} has {len(text)} characters; at most {NAME_CHARACTERS_MAX} are taken")
    return text


def partition_index(partition: int) -> int:
    return within("partition", partition, 0)


def within(field: str, number: int, lowest: int, highest: int | None = None) -> int:
    if number < lowest or (highest is not None and number > highest):
        span = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
        raise invalid(f"{field} is {number}; it may be {span}")
    return number


def default(field: str, number: int, otherwise: int, highest: int) -> int:
    """Returns the number, or `otherwise` if it is absent (zero)."""
    return within(field, number, 0, highest) or otherwise
