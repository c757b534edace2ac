"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

import logging
from typing import Any

import pytest

from headrace.config.values import BROKER_CONFIGS, TOPIC_CONFIGS
from headrace.protocol.api import ApiKey
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DEFAULT, OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, STATIC = 5, 1, 2, 3, 4


async def describe(kit: HandlerKit, kind: int, name: str, version: int = 4, **fields: Any) -> Any:
    keys = fields.pop("keys", None)
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    answer = await kit.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **fields)
    (row,) = answer.results
    assert (row.resource_type, row.resource_name) == (kind, name)
    return row


def by_name(row: Any) -> dict[str, Any]:
    return {config.name: config for config in row.configs}


@pytest.mark.parametrize("version", range(1, 5))
async def test_rule_29_a_topic_shows_all_its_configs_with_their_defaults(kit: HandlerKit, version: int) -> None:
    await kit.create("t", retention_ms="1000")
    row = await describe(kit, TOPIC, "t", version)
    configs = by_name(row)
    assert row.error_code.value == 0
    assert set(configs) == {name for name, one in TOPIC_CONFIGS.items() if not one.internal}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", OF_TOPIC)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", DEFAULT)
    assert not any(config.read_only or config.is_sensitive for config in row.configs)
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        assert configs["cleanup.policy"].config_type == 7


async def test_rule_29_synonyms_tell_where_a_value_could_come_from(kit: HandlerKit) -> None:
    await kit.create("t", retention_ms="1000")
    assert by_name(await describe(kit, TOPIC, "t"))["retention.ms"].synonyms == ()
    row = await describe(kit, TOPIC, "t", include_synonyms=True)
    synonyms = [(one.name, one.value, one.source) for one in by_name(row)["retention.ms"].synonyms]
    assert synonyms[0] == ("retention.ms", "1000", OF_TOPIC)
    assert synonyms[-1] == ("log.retention.hours", "168", DEFAULT)


async def test_rule_29_documentation_is_told_when_asked_for(kit: HandlerKit) -> None:
    await kit.create("t")
    assert by_name(await describe(kit, TOPIC, "t"))["retention.ms"].documentation is None
    told = await describe(kit, TOPIC, "t", include_documentation=True)
    assert all(config.documentation for config in told.configs)


@pytest.mark.parametrize("keys", [("retention.ms",), ("retention.ms", "no.such.key")])
async def test_only_the_keys_that_were_asked_for_are_shown(kit: HandlerKit, keys: tuple[str, ...]) -> None:
    await kit.create("t")
    assert set(by_name(await describe(kit, TOPIC, "t", keys=keys))) == {"retention.ms"}


async def test_a_broker_shows_all_its_configs_and_what_can_change(kit: HandlerKit) -> None:
    configs = by_name(await describe(kit, BROKER, "1", include_synonyms=True))
    assert set(configs) == {name for name, one in BROKER_CONFIGS.items() if not one.internal}
    assert configs["node.id"].value == "1"
    assert configs["node.id"].read_only
    assert configs["node.id"].config_source == STATIC
    assert not configs["log.retention.ms"].read_only


async def test_the_default_of_all_brokers_shows_what_was_set_there(kit: HandlerKit) -> None:
    assert (await describe(kit, BROKER, "")).configs == ()
    await alter(kit, BROKER, "", [("log.retention.ms", SET, "5000")])
    (config,) = (await describe(kit, BROKER, "")).configs
    assert (config.name, config.value, config.config_source) == ("log.retention.ms", "5000", OF_ALL_BROKERS)


async def test_loggers_show_their_levels(kit: HandlerKit) -> None:
    logging.getLogger("headrace.broker.some_test").setLevel(logging.ERROR)
    configs = by_name(await describe(kit, BROKER_LOGGER, "1"))
    assert configs["headrace.broker.some_test"].value == "ERROR"
    assert configs["headrace.broker.some_test"].config_source == 6
    assert "root" in configs


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "no-such-topic", 3),
        (TOPIC, "a b", 17),
        (BROKER, "2", 42),
        (BROKER, "one", 42),
        (BROKER_LOGGER, "", 42),
        (BROKER_LOGGER, "2", 42),
        (GROUP, "", 42),
        (77, "x", 42),
    ],
)
async def test_rule_29_every_resource_has_its_own_answer(kit: HandlerKit, kind: int, name: str, code: int) -> None:
    await kit.create("t")
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None},
        {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None},
    ]
    bad, good = (await kit.ask(ApiKey.DESCRIBE_CONFIGS, resources=asked)).results
    assert (bad.resource_name, bad.error_code.value, bad.configs) == (name, code, ())
    assert bad.error_message
    assert (good.resource_name, good.error_code.value) == ("t", 0)


async def test_describing_needs_permission(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.authorizer = DenyAll()
    assert (await describe(kit, TOPIC, "t")).error_code.value == 29
    assert (await describe(kit, TOPIC, "no-such-topic")).error_code.value == 29
    assert (await describe(kit, BROKER, "1")).error_code.value == 31
    assert (await describe(kit, BROKER_LOGGER, "1")).error_code.value == 31


async def alter(
    kit: HandlerKit, kind: int, name: str, changes: list[tuple[str, int, str | None]], version: int = 1, **fields: Any
) -> Any:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await kit.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], **fields)
    (row,) = answer.responses
    assert (row.resource_type, row.resource_name) == (kind, name)
    return row


async def value_of(kit: HandlerKit, topic: str, key: str) -> str:
    value: str = by_name(await describe(kit, TOPIC, topic))[key].value
    return value


@pytest.mark.parametrize("version", [0, 1])
async def test_rule_29_keys_are_set_and_deleted_one_by_one(kit: HandlerKit, version: int) -> None:
    await kit.create("t", retention_ms="1000", segment_ms="2000")
    row = await alter(kit, TOPIC, "t", [("retention.ms", SET, "77"), ("segment.ms", DELETE, None)], version)
    assert (row.error_code.value, row.error_message) == (0, None)
    assert await value_of(kit, "t", "retention.ms") == "77"
    assert await value_of(kit, "t", "segment.ms") == "604800000"
    assert kit.partition("t").log.config.retention_ms == 77, "the log follows at once"


async def test_rule_29_lists_are_appended_to_and_subtracted_from(kit: HandlerKit) -> None:
    await kit.create("t")
    assert (await alter(kit, TOPIC, "t", [("cleanup.policy", APPEND, "compact")])).error_code.value == 0
    assert await value_of(kit, "t", "cleanup.policy") == "delete,compact"
    assert (await alter(kit, TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete")])).error_code.value == 0
    assert await value_of(kit, "t", "cleanup.policy") == "compact"


async def test_rule_29_validating_changes_nothing(kit: HandlerKit) -> None:
    await kit.create("t")
    row = await alter(kit, TOPIC, "t", [("retention.ms", SET, "77")], validate_only=True)
    assert row.error_code.value == 0
    assert await value_of(kit, "t", "retention.ms") == "604800000"
    row = await alter(kit, TOPIC, "t", [("retention.ms", SET, "soon")], validate_only=True)
    assert row.error_code.value == 40


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "no-such-topic", [("retention.ms", SET, "1")], 3),
        (TOPIC, "t", [("no.such.key", SET, "1")], 40),
        (TOPIC, "t", [("retention.ms", SET, "soon")], 40),
        (TOPIC, "t", [("retention.ms", SET, None)], 42),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], 40),
        (TOPIC, "t", [("retention.ms", 9, "1")], 42),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], 42),
        (BROKER, "1", [("node.id", SET, "2")], 42),
        (BROKER, "9", [("log.retention.ms", SET, "1")], 42),
        (BROKER_LOGGER, "1", [("no.such.logger", SET, "INFO")], 40),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], 40),
        (77, "x", [("a", SET, "b")], 42),
    ],
)
async def test_what_cannot_be_altered_is_refused_with_a_reason(
    kit: HandlerKit, kind: int, name: str, changes: list[tuple[str, int, str | None]], code: int
) -> None:
    await kit.create("t")
    row = await alter(kit, kind, name, changes)
    assert row.error_code.value == code
    assert row.error_message


async def test_rule_29_one_answer_row_for_each_resource_even_when_named_twice(kit: HandlerKit) -> None:
    await kit.create("t")
    await kit.create("u")
    change = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
    asked = [{"resource_type": TOPIC, "resource_name": name, "configs": change} for name in ("t", "u", "t")]
    answer = await kit.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=asked)
    assert [(row.resource_name, row.error_code.value) for row in answer.responses] == [("t", 42), ("u", 0), ("t", 42)]
    assert await value_of(kit, "t", "retention.ms") == "604800000"


async def test_a_broker_config_becomes_the_default_of_topics(kit: HandlerKit) -> None:
    await kit.create("t")
    assert (await alter(kit, BROKER, "1", [("log.retention.ms", SET, "999")])).error_code.value == 0
    row = await describe(kit, TOPIC, "t", include_synonyms=True)
    retention = by_name(row)["retention.ms"]
    assert (retention.value, retention.config_source) == ("999", OF_BROKER)
    assert kit.partition("t").log.config.retention_ms == 999


async def test_log_levels_are_changed(kit: HandlerKit) -> None:
    name = "headrace.broker.another_test"
    logging.getLogger(name)
    assert (await alter(kit, BROKER_LOGGER, "1", [(name, SET, "DEBUG")])).error_code.value == 0
    assert logging.getLogger(name).level == logging.DEBUG
    assert (await alter(kit, BROKER_LOGGER, "1", [(name, DELETE, None)])).error_code.value == 0
    assert logging.getLogger(name).level == logging.NOTSET


async def test_altering_needs_permission(kit: HandlerKit) -> None:
    await kit.create("t")
    kit.authorizer = DenyAll()
    assert (await alter(kit, TOPIC, "t", [("retention.ms", SET, "1")])).error_code.value == 29
    assert (await alter(kit, BROKER, "1", [("log.retention.ms", SET, "1")])).error_code.value == 31
    assert (await alter(kit, BROKER_LOGGER, "1", [("root", SET, "DEBUG")])).error_code.value == 31


async def replace(kit: HandlerKit, kind: int, name: str, version: int = 2, **configs: str | None) -> Any:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    (row,) = (await kit.ask(ApiKey.ALTER_CONFIGS, version, resources=[resource])).responses
    return row


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_sets_what_is_named_and_resets_the_rest(kit: HandlerKit, version: int) -> None:
    await kit.create("t", retention_ms="1000", segment_ms="2000")
    row = await replace(kit, TOPIC, "t", version, retention_ms="77")
    assert (row.resource_name, row.error_code.value) == ("t", 0)
    assert await value_of(kit, "t", "retention.ms") == "77"
    assert await value_of(kit, "t", "segment.ms") == "604800000"


async def test_alter_configs_refuses_nulls_and_log_levels(kit: HandlerKit) -> None:
    await kit.create("t")
    assert (await replace(kit, TOPIC, "t", retention_ms=None)).error_code.value == 42
    assert (await replace(kit, BROKER_LOGGER, "1", root="DEBUG")).error_code.value == 42
    kit.authorizer = DenyAll()
    assert (await replace(kit, TOPIC, "t", retention_ms="1")).error_code.value == 29


def listed(answer: Any) -> list[tuple[int, str]]:
    return [(row.resource_type, row.resource_name) for row in answer.config_resources]


async def test_config_resources_are_listed_by_type(kit: HandlerKit) -> None:
    await kit.create("t")
    everything = await kit.ask(ApiKey.LIST_CONFIG_RESOURCES)
    assert listed(everything) == [(TOPIC, "t"), (BROKER, "1"), (BROKER_LOGGER, "1")]
    some = await kit.ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=(BROKER, CLIENT_METRICS, GROUP))
    assert listed(some) == [(BROKER, "1")]


async def test_the_first_version_lists_client_metrics_only(kit: HandlerKit) -> None:
    await kit.create("t")
    answer = await kit.ask(ApiKey.LIST_CONFIG_RESOURCES, 0)
    assert (answer.error_code.value, answer.config_resources) == (0, ())


async def test_an_unknown_type_of_resource_is_not_supported(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=(TOPIC, 77))
    assert (answer.error_code.value, answer.config_resources) == (35, ())


async def test_listing_config_resources_needs_permission(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.LIST_CONFIG_RESOURCES)
    assert (answer.error_code.value, answer.config_resources) == (31, ())


async def test_a_group_can_be_given_configs_before_anybody_has_joined_it(kit: HandlerKit) -> None:
    changed = await alter(kit, GROUP, "g", [("consumer.session.timeout.ms", SET, "60000")])
    assert changed.error_code.value == 0
    assert listed(await kit.ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=(GROUP,))) == [(GROUP, "g")]
    session = by_name(await describe(kit, GROUP, "g"))["consumer.session.timeout.ms"]
    assert (session.value, session.config_source) == ("60000", 8)
