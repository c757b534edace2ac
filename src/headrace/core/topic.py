"""Topic names: validation, internal topics, collisions in metric names."""

from headrace.model.errors import InvalidTopic

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})


# A partition's directory is `<topic>-<partition>`, with a suffix while it is deleted; file names have at most 255
# bytes. Kafka's limit, so that every topic can be migrated both ways.
TOPIC_NAME_CHARS_MAX = 249
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_topic_name(name: str) -> None:
    """Raises InvalidTopic for an invalid topic name, with the rule that it breaks."""
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
    """Replaces dots by underscores.

    Names that differ only in these become the same metric name, so they must not coexist.
    """
    return name.replace(".", "_")
