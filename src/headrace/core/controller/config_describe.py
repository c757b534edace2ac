"""Effective configs and their sources: the rows of DescribeConfigs and CreateTopics.

Precedence: topic config, dynamic config of this broker, dynamic default of the cluster, static settings of the node,
built-in default. Read-only.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.config.keys.group import GROUP_CONFIGS
from headrace.config.settings import Settings
from headrace.config.values import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigDef, ConfigType, render, topic_config_value
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage

CLUSTER_DEFAULT = ""  # the broker resource of the cluster-wide default


class ConfigSource(IntEnum):
    """Source of a value, by DescribeConfigs' numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    GROUP = 8


class Synonym(NamedTuple):
    """One possible source of the value. The first of a row is the effective one."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigRow(NamedTuple):
    name: str
    value: str | None  # None: unset without a default, or a secret
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    doc: str


class BrokerLayers(NamedTuple):
    """The config layers of one broker, the most specific first."""

    own: Mapping[str, str]
    cluster: Mapping[str, str]
    static: Mapping[str, str]
    keys: tuple[str, ...] = ()  # metadata keys that the layers were read from

    def merged(self) -> dict[str, str]:
        return {**self.static, **self.cluster, **self.own}

    def synonyms_of(self, definition: ConfigDef) -> Iterator[Synonym]:
        for layer, source in zip((self.own, self.cluster, self.static), _LAYER_SOURCES, strict=True):
            if (value := layer.get(definition.name)) is not None:
                yield Synonym(definition.name, _shown(definition, value), source)
        if definition.default_text is not None:
            yield Synonym(definition.name, _shown(definition, definition.default_text), ConfigSource.DEFAULT)


_LAYER_SOURCES = (
    ConfigSource.DYNAMIC_BROKER,
    ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigSource.STATIC_BROKER,
)


def broker_layers(image: MetadataImage, settings: Settings, node_id: int) -> BrokerLayers:
    """Returns a broker's config layers.

    Static settings are only available for the local node; other brokers show none.
    """
    return BrokerLayers(
        own=image.broker_configs.get(str(node_id), {}),
        cluster=image.broker_configs.get(CLUSTER_DEFAULT, {}),
        static=static_configs(settings) if node_id == settings.node_id else {},
        keys=(records.broker_configs_key(str(node_id)), records.broker_configs_key(CLUSTER_DEFAULT)),
    )


def static_configs(settings: Settings) -> dict[str, str]:
    """Returns the node's static settings under Kafka's names, including those kept in typed fields."""
    # The addresses that clients connect to are always reported as configured. Where advertised.listeners is not set,
    # the listeners are the configuration.
    fields = {"node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs"}
    if settings.rack is not None:
        fields.add("broker.rack")
    return {**settings.broker_configs, **{name: render(settings.config(name)) for name in fields}}


def describe_topic(overrides: Mapping[str, str], layers: BrokerLayers) -> list[ConfigRow]:
    """Returns every config of a topic, set or not."""
    broker = layers.merged()
    return [
        _topic_row(definition, overrides, layers, broker)
        for definition in TOPIC_CONFIGS.values()
        if not definition.internal
    ]


def describe_group(overrides: Mapping[str, str], layers: BrokerLayers) -> list[ConfigRow]:
    """Returns every config of a group, set or not."""
    rows = []
    for definition in GROUP_CONFIGS.values():
        synonyms = [one for name in definition.synonyms for one in layers.synonyms_of(BROKER_CONFIGS[name])]
        if definition.name in overrides:
            synonyms.insert(0, Synonym(definition.name, overrides[definition.name], ConfigSource.GROUP))
        rows.append(_row(definition, synonyms[0].value, tuple(synonyms), read_only=False))
    return rows


def describe_broker(layers: BrokerLayers) -> list[ConfigRow]:
    """Returns every config of a broker, set or not."""
    return [_broker_row(definition, layers) for definition in BROKER_CONFIGS.values() if not definition.internal]


def describe_cluster_default(image: MetadataImage) -> list[ConfigRow]:
    """Returns the cluster-wide dynamic defaults. The default resource has no other configs."""
    layers = BrokerLayers({}, image.broker_configs.get(CLUSTER_DEFAULT, {}), {})
    return [_broker_row(BROKER_CONFIGS[name], layers) for name in layers.cluster if name in BROKER_CONFIGS]


def _topic_row(
    definition: ConfigDef, overrides: Mapping[str, str], layers: BrokerLayers, broker: Mapping[str, str]
) -> ConfigRow:
    synonyms = []
    if definition.name in overrides:
        synonyms.append(Synonym(definition.name, _shown(definition, overrides[definition.name]), ConfigSource.TOPIC))
    for name in definition.synonyms:
        synonyms += layers.synonyms_of(BROKER_CONFIGS[name])
    if not definition.synonyms and definition.default_text is not None:
        synonyms.append(Synonym(definition.name, definition.default_text, ConfigSource.DEFAULT))
    value = topic_config_value(definition, overrides, broker)
    return _row(definition, None if value is None else render(value), tuple(synonyms), read_only=False)


def _broker_row(definition: ConfigDef, layers: BrokerLayers) -> ConfigRow:
    synonyms = list(layers.synonyms_of(definition))
    value = synonyms[0].value if synonyms else None
    for name in definition.synonyms:
        synonyms += layers.synonyms_of(BROKER_CONFIGS[name])
    return _row(definition, value, tuple(synonyms), read_only=not definition.dynamic)


def _row(definition: ConfigDef, value: str | None, synonyms: tuple[Synonym, ...], *, read_only: bool) -> ConfigRow:
    return ConfigRow(
        name=definition.name,
        value=None if definition.sensitive else value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only=read_only,
        sensitive=definition.sensitive,
        synonyms=synonyms,
        type=definition.type,
        doc=definition.doc,
    )


def _shown(definition: ConfigDef, text: str) -> str | None:
    return None if definition.sensitive else text
