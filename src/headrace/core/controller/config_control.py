"""Validates changes of topic, broker and group configs, and of logger levels.

Configs: reads the image and the request, and returns one decision or error per resource.

Logger levels: names and levels are text, as Kafka's tools send them. Levels last as long as the process and are not
cluster metadata. The caller sets them on the loggers.

Pure; performs no I/O.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.config.keys.group import check_group_configs, group_definition
from headrace.config.values import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigType,
    ConfigValue,
    check_topic_configs,
    nearest,
    render,
    topic_config_value,
    unknown_config,
)
from headrace.core.controller.config_describe import BrokerLayers, ConfigRow, describe_topic
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import ConfigResource, Decision, ResourceType
from headrace.model.errors import InvalidConfig, RequestError, UnknownTopic


def topic_definition(name: str) -> ConfigDef:
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        raise unknown_config(name, TOPIC_CONFIGS, "topic")
    return definition


def checked_configs(configs: Mapping[str, str | None], layers: BrokerLayers) -> dict[str, str]:
    """Returns topic configs as canonical text. Raises if one of them, or their combination, is invalid."""
    canonical = {}
    for name, text in configs.items():
        definition = topic_definition(name)
        if text is None:
            raise InvalidConfig(f"the topic config {name} has no value; leave it out to use the default")
        canonical[name] = render(definition.parse(text))
    check_topic_configs(canonical, layers.merged())
    return canonical


class CheckedConfigs(NamedTuple):
    set: Mapping[str, str]
    rows: tuple[ConfigRow, ...]


class ConfigsOfTopics:
    """Validates and describes the configs of the topics of one request.

    Results are shared between topics, since most are usually alike.
    """

    def __init__(self, layers: BrokerLayers) -> None:
        self._layers = layers
        self._seen: dict[tuple[tuple[str, str | None], ...], CheckedConfigs] = {}

    def of(self, configs: Mapping[str, str | None]) -> CheckedConfigs:
        signature = tuple(sorted(configs.items()))
        if signature not in self._seen:
            canonical = checked_configs(configs, self._layers)
            self._seen[signature] = CheckedConfigs(canonical, tuple(describe_topic(canonical, self._layers)))
        return self._seen[signature]


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs on one key, by protocol number."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    operation: int
    value: str | None


Outcomes = dict[ConfigResource, Decision[None] | RequestError]
Replacement = Mapping[str, str | None]
Change = list[Alteration] | Replacement


def alter_configs(
    wanted: Mapping[ConfigResource, Iterable[Alteration]], image: MetadataImage, layers: BrokerLayers
) -> Outcomes:
    """IncrementalAlterConfigs: keys that are not named keep their values."""
    return {resource: _outcome(resource, list(alterations), image, layers) for resource, alterations in wanted.items()}


def legacy_alter_configs(
    wanted: Mapping[ConfigResource, Replacement], image: MetadataImage, layers: BrokerLayers
) -> Outcomes:
    """AlterConfigs: keys that are not named return to their defaults."""
    return {resource: _outcome(resource, configs, image, layers) for resource, configs in wanted.items()}


def _outcome(
    resource: ConfigResource, change: Change, image: MetadataImage, layers: BrokerLayers
) -> Decision[None] | RequestError:
    try:
        if resource.type == ResourceType.TOPIC:
            return _topic(resource.name, change, image, layers)
        if resource.type == ResourceType.BROKER:
            return _broker(resource.name, change, image, layers)
        if resource.type == ResourceType.GROUP:
            return _group(resource.name, change, image, layers)
        raise RequestError(f"configs cannot be changed on a resource of type {resource.type}")
    except RequestError as error:
        return error


def _topic(name: str, change: Change, image: MetadataImage, layers: BrokerLayers) -> Decision[None]:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name}")
    broker = layers.merged()

    def effective(definition: ConfigDef) -> ConfigValue | None:
        return topic_config_value(definition, topic.configs, broker)

    wanted = _wanted(topic.configs, change, topic_definition, effective)
    configs = checked_configs(wanted, layers)
    value = records.encode_topic(topic.topic_id, configs, topic.former_ids)
    return Decision(None, {records.topic_key(name): value}, unchanged=layers.keys)


def _broker(name: str, change: Change, image: MetadataImage, layers: BrokerLayers) -> Decision[None]:
    if name and not (name.isascii() and name.isdigit() and int(name) in image.brokers):
        raise RequestError(f"no broker has the id {name!r}; '' stands for all brokers")
    present = image.broker_configs.get(name, {})
    all_set = {**layers.merged(), **present}

    def effective(definition: ConfigDef) -> ConfigValue | None:
        text = all_set.get(definition.name)
        return definition.default if text is None else definition.parse(text)

    configs = {
        key: _canonical(_dynamic_definition(key), text)
        for key, text in _wanted(present, change, _dynamic_definition, effective).items()
    }
    # These values become effective for every topic without values of its own.
    check_topic_configs({}, {**layers.merged(), **configs})
    key = records.broker_configs_key(name)
    return Decision(None, {key: records.encode_configs(configs) if configs else None}, unchanged=layers.keys)


def _group(name: str, change: Change, image: MetadataImage, layers: BrokerLayers) -> Decision[None]:
    """Configs can be set for a group that does not exist. They apply once it does."""
    if not name:
        raise RequestError("a group has a name")

    def effective(definition: ConfigDef) -> ConfigValue | None:
        return None  # no key of a group is a list

    present = image.group_configs.get(name, {})
    configs = {
        key: _canonical(group_definition(key), text)
        for key, text in _wanted(present, change, group_definition, effective).items()
    }
    check_group_configs(configs, layers.merged())
    key = records.group_configs_key(name)
    return Decision(None, {key: records.encode_configs(configs) if configs else None}, unchanged=layers.keys)


def _dynamic_definition(name: str) -> ConfigDef:
    definition = BROKER_CONFIGS.get(name)
    if definition is None:
        raise unknown_config(name, BROKER_CONFIGS, "broker")
    if not definition.dynamic:
        raise RequestError(
            f"{name} cannot change while the broker runs; set it in the node's configuration and restart it"
        )
    return definition


def _canonical(definition: ConfigDef, text: str | None) -> str:
    if text is None:
        raise InvalidConfig(f"{definition.name} was given no value; delete it to use the default")
    return render(definition.parse(text))


def _wanted(
    present: Mapping[str, str],
    change: Change,
    definition_of: Callable[[str], ConfigDef],
    effective: Callable[[ConfigDef], ConfigValue | None],
) -> dict[str, str | None]:
    """Returns the values after the change. They are not validated yet."""
    if not isinstance(change, list):
        return dict(change)
    wanted: dict[str, str | None] = dict(present)
    if len({alteration.name for alteration in change}) < len(change):
        raise RequestError("a key may be changed only once in a request")
    for name, operation, value in change:
        definition = definition_of(name)
        match operation:
            case Operation.SET:
                wanted[name] = value
            case Operation.DELETE:
                wanted.pop(name, None)
            case Operation.APPEND | Operation.SUBTRACT:
                wanted[name] = _changed_list(definition, operation, value, effective(definition))
            case _:
                raise RequestError(f"there is no config operation {operation}")
    return wanted


def _changed_list(definition: ConfigDef, operation: int, value: str | None, effective: ConfigValue | None) -> str:
    """Returns the list with items appended or subtracted, starting from the default if no value is set."""
    verb = Operation(operation).name
    if definition.type is not ConfigType.LIST:
        raise InvalidConfig(f"{verb} is for lists, and {definition.name} is none; use SET")
    if value is None:
        raise InvalidConfig(f"{verb} on {definition.name} needs the items to change")
    items = tuple(item for item in map(str.strip, value.split(",")) if item)
    before = effective if isinstance(effective, tuple) else ()
    if operation == Operation.SUBTRACT:
        return render(tuple(item for item in before if item not in items))
    return render(tuple(dict.fromkeys(before + items)))


ROOT_LOGGER = "root"
# Kafka's level names and Python's logging numbers. Python has no TRACE, which is more verbose than DEBUG.
LEVELS: Mapping[str, int] = {"FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}


def altered_levels(
    resource: ConfigResource, alterations: Iterable[Alteration], known: Collection[str], node_id: int
) -> dict[str, str | None]:
    """Returns the new level of each named logger; None: inherited from its parent.

    Raises RequestError if a change is invalid.
    """
    if resource.name != str(node_id):
        raise RequestError(
            f"log levels belong to one broker: send the request to broker {node_id} about {node_id}, not"
            f" {resource.name!r}"
        )
    levels: dict[str, str | None] = {}
    for alteration in alterations:
        if alteration.name in levels:
            raise RequestError(f"the logger {alteration.name} may be changed only once in a request")
        _check_known(alteration.name, known)
        levels[alteration.name] = _level(alteration)
    return levels


def level_name(number: int) -> str:
    """Returns the name of the highest level that is not above `number`; TRACE for numbers below all levels."""
    return next((word for word, least in LEVELS.items() if number >= least), "TRACE")


def _level(alteration: Alteration) -> str | None:
    name, operation, value = alteration
    if operation == Operation.DELETE:
        if name == ROOT_LOGGER:
            raise RequestError("the root logger always has a level; set another one")
        return None
    if operation != Operation.SET:
        raise RequestError(f"a log level can only be set or deleted; {name} is not a list")
    if value not in LEVELS:
        raise InvalidConfig(f"{value!r} is not a log level of {name}; use one of {', '.join(LEVELS)}")
    return value


def _check_known(name: str, known: Collection[str]) -> None:
    if name not in known:
        close = nearest(name, known)
        hint = f"; did you mean {close}?" if close is not None else ""
        raise InvalidConfig(f"there is no logger {name}{hint}")
