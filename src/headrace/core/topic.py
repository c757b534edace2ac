"""Topic names: which are valid, which are internal, which collide in metric names."""

from headrace.model.errors import InvalidTopic

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})


# A partition's folder is `<topic>-<partition>` and, while it is deleted, carries a suffix; file names end at
# 255 bytes. The number is Kafka's, so that every topic can move both ways.
TOPIC_NAME_CHARS_MAX = 249
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_topic_name(name: str) -> None:
    """InvalidTopic if no topic can have this name; the reason says which rule it breaks."""
    if not name:
        raise InvalidTopic("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopic(f"a topic cannot be named {name!r}: that is a directory on disk")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise InvalidTopic(f"the topic name has {len(name)} characters; at most {TOPIC_NAME_CHARS_MAX} fit")
    if not _LEGAL.issuperset(name):
        raise InvalidTopic(
            f"the topic name {name!r} contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
        )


def unify_collision_chars(name: str) -> str:
    """Names that differ only in dots and underscores become one metric, so they may not coexist."""
    return name.replace(".", "_")
