"""Whether the configs of a topic may be what somebody wants them to be."""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.core.cluster.config_view import BrokerLayers, ConfigRow, describe_topic
from headrace.model.configs import TOPIC_CONFIGS, ConfigDef, check_topic_configs, render, unknown_config
from headrace.model.errors import InvalidConfig


def topic_definition(name: str) -> ConfigDef:
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        raise unknown_config(name, TOPIC_CONFIGS, "topic")
    return definition


def checked_configs(configs: Mapping[str, str | None], layers: BrokerLayers) -> dict[str, str]:
    """Topic configs as canonical text, if each of them and all of them together are valid."""
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
    """Checks and describes the configs of the topics of one request, where most are usually alike."""

    def __init__(self, layers: BrokerLayers) -> None:
        self._layers = layers
        self._seen: dict[tuple[tuple[str, str | None], ...], CheckedConfigs] = {}

    def of(self, configs: Mapping[str, str | None]) -> CheckedConfigs:
        signature = tuple(sorted(configs.items()))
        if signature not in self._seen:
            canonical = checked_configs(configs, self._layers)
            self._seen[signature] = CheckedConfigs(canonical, tuple(describe_topic(canonical, self._layers)))
        return self._seen[signature]
