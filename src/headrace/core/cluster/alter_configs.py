"""Changing the configs of topics, brokers and groups: what is allowed, and which facts make it so.

Reads the image and the request and answers with a decision per resource, or with the reason why not. Log
levels are not facts; see loggers.py.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.core.cluster import facts
from headrace.core.cluster.config_view import BrokerLayers
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.topic_configs import checked_configs, topic_definition
from headrace.core.cluster.values import ConfigResource, Decision, ResourceType
from headrace.model.configs import (
    BROKER_CONFIGS,
    ConfigDef,
    ConfigType,
    ConfigValue,
    check_topic_configs,
    render,
    topic_config_value,
    unknown_config,
)
from headrace.model.errors import InvalidConfig, RequestError, UnknownTopic
from headrace.model.group_configs import check_group_configs, group_definition


class Operation(IntEnum):
    """What IncrementalAlterConfigs can do to one key, by its numbers."""

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
    wanted: Mapping[ConfigResource, Iterable[Alteration]], image: ClusterImage, layers: BrokerLayers
) -> Outcomes:
    """IncrementalAlterConfigs: keys that are not named stay as they are."""
    return {resource: _outcome(resource, list(alterations), image, layers) for resource, alterations in wanted.items()}


def replace_configs(
    wanted: Mapping[ConfigResource, Replacement], image: ClusterImage, layers: BrokerLayers
) -> Outcomes:
    """AlterConfigs: keys that are not named go back to their defaults."""
    return {resource: _outcome(resource, configs, image, layers) for resource, configs in wanted.items()}


def _outcome(
    resource: ConfigResource, change: Change, image: ClusterImage, layers: BrokerLayers
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


def _topic(name: str, change: Change, image: ClusterImage, layers: BrokerLayers) -> Decision[None]:
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name}")
    broker = layers.merged()

    def effective(definition: ConfigDef) -> ConfigValue | None:
        return topic_config_value(definition, topic.configs, broker)

    wanted = _wanted(topic.configs, change, topic_definition, effective)
    configs = checked_configs(wanted, layers)
    value = facts.encode_topic(topic.topic_id, configs, topic.former_ids)
    return Decision(None, {facts.topic_key(name): value}, unchanged=layers.keys)


def _broker(name: str, change: Change, image: ClusterImage, layers: BrokerLayers) -> Decision[None]:
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
    # Every topic without values of its own would have these.
    check_topic_configs({}, {**layers.merged(), **configs})
    key = facts.broker_configs_key(name)
    return Decision(None, {key: facts.encode_configs(configs) if configs else None}, unchanged=layers.keys)


def _group(name: str, change: Change, image: ClusterImage, layers: BrokerLayers) -> Decision[None]:
    """A group need not be there to have configs: they are waiting for it when it comes."""
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
    key = facts.group_configs_key(name)
    return Decision(None, {key: facts.encode_configs(configs) if configs else None}, unchanged=layers.keys)


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
    """What is to be set after the change; values are not checked yet."""
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
    """The list with items added or taken away, starting from the default if none was set."""
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
