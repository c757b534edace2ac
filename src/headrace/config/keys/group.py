"""Group config keys, and the broker's limits for their values.

They are set by IncrementalAlterConfigs on a resource of type GROUP.
"""

from collections.abc import Mapping

from headrace.config.definition import INT, ConfigDef, Range
from headrace.config.values import BROKER_CONFIGS, unknown_config
from headrace.model.errors import InvalidConfig

_KEYS = (
    ConfigDef(
        "consumer.assignment.interval.ms",
        INT,
        0,
        "Minimum time between two assignments of this group, if it uses the consumer protocol.",
        Range(0),
        synonyms=("group.consumer.assignment.interval.ms",),
    ),
    ConfigDef(
        "consumer.heartbeat.interval.ms",
        INT,
        5000,
        "Heartbeat interval of this group's members, if it uses the consumer protocol.",
        Range(1),
        synonyms=("group.consumer.heartbeat.interval.ms",),
    ),
    ConfigDef(
        "consumer.session.timeout.ms",
        INT,
        45_000,
        "A member of this group that sends no heartbeat for this long is removed, if the group uses the consumer "
        "protocol.",
        Range(1),
        synonyms=("group.consumer.session.timeout.ms",),
    ),
)
GROUP_CONFIGS: Mapping[str, ConfigDef] = {definition.name: definition for definition in _KEYS}

# Key prefixes of Kafka's other group types. Values for these would never be used.
_NOT_SERVED = {"share.": "share groups", "streams.": "streams groups (group.protocol=streams)"}

# The broker configs that limit a group's own value, both included.
_LIMITS = {
    "consumer.assignment.interval.ms": (
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
}


def group_definition(name: str) -> ConfigDef:
    """Returns a group config. Raises InvalidConfig with the reason for an unsupported key."""
    definition = GROUP_CONFIGS.get(name)
    if definition is not None:
        return definition
    for prefix, kind in _NOT_SERVED.items():
        if name.startswith(prefix):
            raise InvalidConfig(f"{name} is for {kind}, which this broker does not serve")
    raise unknown_config(name, GROUP_CONFIGS, "group")


def group_config(name: str, overrides: Mapping[str, str], broker: Mapping[str, str]) -> int:
    """Returns the effective value for a group: its own value, clamped to the broker's limits, or the broker's value."""
    definition = GROUP_CONFIGS[name]
    if name in overrides:
        low, high = _limits(name, broker)
        return min(max(_number(definition, overrides[name]), low), high)
    (synonym,) = definition.synonyms
    return _broker_number(synonym, broker)


def check_group_configs(overrides: Mapping[str, str], broker: Mapping[str, str]) -> None:
    """Raises InvalidConfig for values outside of the broker's limits, and for contradictory ones."""
    for name, text in overrides.items():
        low, high = _limits(name, broker)
        if not low <= _number(GROUP_CONFIGS[name], text) <= high:
            raise InvalidConfig(f"{name} must be between {low} and {high} on this broker, not {text}")
    session_ms = group_config("consumer.session.timeout.ms", overrides, broker)
    interval_ms = group_config("consumer.heartbeat.interval.ms", overrides, broker)
    if interval_ms >= session_ms:
        raise InvalidConfig(
            f"consumer.session.timeout.ms ({session_ms}) must be greater than "
            f"consumer.heartbeat.interval.ms ({interval_ms})"
        )


def _limits(name: str, broker: Mapping[str, str]) -> tuple[int, int]:
    low, high = _LIMITS[name]
    return _broker_number(low, broker), _broker_number(high, broker)


def _broker_number(name: str, broker: Mapping[str, str]) -> int:
    definition = BROKER_CONFIGS[name]
    return _number(definition, broker[name]) if name in broker else _default(definition)


def _number(definition: ConfigDef, text: str) -> int:
    value = definition.parse(text)
    assert isinstance(value, int), "these keys are numbers"
    return value


def _default(definition: ConfigDef) -> int:
    assert isinstance(definition.default, int), "these keys have defaults"
    return definition.default
