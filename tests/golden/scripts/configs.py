"""Configs: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from typing import Any

from tests.golden.conversation import Conversation
from tests.golden.scripts.common import (
    ALTER_CONFIGS,
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DESCRIBE_CONFIGS,
    GROUP,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
    TOPIC,
    create_topic,
    script,
)

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
LOGGER = "headrace"


def set_config(c: Conversation, kind: int, resource: str, name: str, value: str | None) -> None:
    operation = DELETE if value is None else SET
    configs = [{"name": name, "config_operation": operation, "value": value}]
    resources = [{"resource_type": kind, "resource_name": resource, "configs": configs}]
    c.arrange(INCREMENTAL_ALTER_CONFIGS, 1, resources=resources)


@script(DESCRIBE_CONFIGS)
def describe_configs_script(c: Conversation) -> None:
    def asked(kind: int, name: str, *keys: str) -> dict[str, Any]:
        return {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}

    def of(*resources: dict[str, Any], synonyms: bool = False, docs: bool = False) -> dict[str, Any]:
        return {"resources": list(resources), "include_synonyms": synonyms, "include_documentation": docs}

    create_topic(c, "t", retention_ms="5000")
    key = "retention.ms"
    c.ok("a config of a topic", **of(asked(TOPIC, "t", key)))
    c.ok("synonyms", **of(asked(TOPIC, "t", key, "segment.bytes"), synonyms=True))
    c.ok("documentation", **of(asked(TOPIC, "t", key), docs=True))
    c.ok("all of a topic", **of(asked(TOPIC, "t")))
    c.ok("all of a topic with everything", **of(asked(TOPIC, "t"), synonyms=True, docs=True))
    c.ok("no keys", **of({**asked(TOPIC, "t"), "configuration_keys": []}))
    c.ok("a key that there is not", **of(asked(TOPIC, "t", "what.is.this", key)))
    c.ok(
        "this broker",
        **of(asked(BROKER, "1", "num.partitions", "log.retention.ms", "advertised.listeners"), synonyms=True),
    )
    c.ok("all of this broker", **of(asked(BROKER, "1"), synonyms=True, docs=True))
    c.ok("the defaults of all brokers", **of(asked(BROKER, "")))
    set_config(c, BROKER, "", "log.retention.ms", "77000")
    set_config(c, BROKER, "1", "log.segment.bytes", "12345678")
    c.ok("the defaults of all brokers, after one was set", **of(asked(BROKER, ""), synonyms=True))
    c.ok(
        "this broker, after a default was set",
        **of(asked(BROKER, "1", "log.retention.ms", "log.segment.bytes"), synonyms=True),
    )
    c.ok("a topic, after a default was set", **of(asked(TOPIC, "t", key, "segment.bytes"), synonyms=True))
    c.ok("a logger", **of(asked(BROKER_LOGGER, "1", LOGGER), synonyms=True, docs=True))
    c.ok("a group", **of(asked(GROUP, "g")))
    set_config(c, GROUP, "g", "consumer.session.timeout.ms", "50000")
    c.ok("a group with a config", **of(asked(GROUP, "g"), synonyms=True, docs=True))
    c.error("another broker", **of(asked(BROKER, "2")))
    c.error("a broker that is no number", **of(asked(BROKER, "one")))
    c.error("the loggers of another broker", **of(asked(BROKER_LOGGER, "2")))
    c.error("the loggers of all brokers", **of(asked(BROKER_LOGGER, "")))
    c.error("an unknown topic", **of(asked(TOPIC, "missing")))
    c.error("a topic name that cannot be", **of(asked(TOPIC, "not/a/name")))
    c.error("an empty group id", **of(asked(GROUP, "")))
    c.error("client metrics", **of(asked(CLIENT_METRICS, "m")))
    c.error("an unknown type", **of(asked(99, "x")))
    c.error(
        "several, good and bad",
        **of(asked(TOPIC, "t", key), asked(TOPIC, "missing"), asked(BROKER, "1", "num.partitions")),
    )
    c.any("a resource twice", **of(asked(TOPIC, "t", key), asked(TOPIC, "t", key)))
    c.ok("in the end", **of(asked(TOPIC, "t", key), asked(GROUP, "g"), asked(BROKER, "1", "num.partitions")))


@script(ALTER_CONFIGS)
def alter_configs_script(c: Conversation) -> None:
    def resource(kind: int, name: str, **configs: str | None) -> dict[str, Any]:
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        return {"resource_type": kind, "resource_name": name, "configs": rows}

    def of(*resources: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
        return {"resources": list(resources), "validate_only": validate_only}

    create_topic(c, "t")
    c.ok("a topic", **of(resource(TOPIC, "t", retention_ms="1000", cleanup_policy="compact")))
    c.ok("back to the defaults", **of(resource(TOPIC, "t")))
    c.ok("only validated", **of(resource(TOPIC, "t", retention_ms="7"), validate_only=True))
    c.error("only validated, and it is bad", **of(resource(TOPIC, "t", retention_ms="x"), validate_only=True))
    c.error("an unknown topic", **of(resource(TOPIC, "missing", retention_ms="1")))
    c.error("an unknown config", **of(resource(TOPIC, "t", what="1")))
    c.error("no number", **of(resource(TOPIC, "t", retention_ms="long")))
    c.error("out of range", **of(resource(TOPIC, "t", retention_ms="-7")))
    c.error("no value", **of(resource(TOPIC, "t", retention_ms=None)))
    twice = resource(TOPIC, "t", retention_ms="1")
    c.error("a key twice", **of({**twice, "configs": twice["configs"] * 2}))
    c.error("a resource twice", **of(twice, twice))
    c.ok("this broker", **of(resource(BROKER, "1", log_retention_ms="100000")))
    c.ok("all brokers", **of(resource(BROKER, "", log_retention_ms="100000")))
    c.any("another broker", **of(resource(BROKER, "2", log_retention_ms="100000")))
    c.error("a broker that is no number", **of(resource(BROKER, "one", log_retention_ms="100000")))
    c.error("a config that is read at the start", **of(resource(BROKER, "1", offsets_topic_num_partitions="3")))
    c.error("a logger", **of(resource(BROKER_LOGGER, "1", headrace="INFO")))
    c.ok("a group", **of(resource(GROUP, "g", consumer_session_timeout_ms="50000")))
    c.error("a group, out of range", **of(resource(GROUP, "g", consumer_session_timeout_ms="1")))
    c.error("an empty group id", **of(resource(GROUP, "", consumer_session_timeout_ms="50000")))
    c.error("client metrics", **of(resource(CLIENT_METRICS, "m", interval_ms="1")))
    c.error("an unknown type", **of(resource(99, "x")))
    c.error("several, good and bad", **of(resource(TOPIC, "t", retention_ms="5"), resource(TOPIC, "missing")))
    c.ok("in the end", **of(resource(TOPIC, "t", retention_ms="9"), validate_only=True))


@script(INCREMENTAL_ALTER_CONFIGS)
def incremental_alter_configs_script(c: Conversation) -> None:
    def resource(kind: int, name: str, *changes: tuple[str, int, str | None]) -> dict[str, Any]:
        rows = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        return {"resource_type": kind, "resource_name": name, "configs": rows}

    def of(*resources: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
        return {"resources": list(resources), "validate_only": validate_only}

    def topic(*change: Any, validate_only: bool = False) -> dict[str, Any]:
        return of(resource(TOPIC, "t", change), validate_only=validate_only)

    create_topic(c, "t")
    key, policy = "retention.ms", "cleanup.policy"
    c.ok("set", **topic(key, SET, "1000"))
    c.ok("delete", **topic(key, DELETE, None))
    c.ok("delete what is not set", **topic(key, DELETE, None))
    c.ok("append", **topic(policy, APPEND, "compact"))
    c.ok("append what is there", **topic(policy, APPEND, "compact"))
    c.ok("subtract", **topic(policy, SUBTRACT, "compact"))
    c.any("subtract what is not there", **topic(policy, SUBTRACT, "compact"))
    c.ok("only validated", **topic(key, SET, "1000", validate_only=True))
    c.error("only validated, and it is bad", **topic(key, SET, "x", validate_only=True))
    c.error("append to what is no list", **topic(key, APPEND, "1"))
    c.error("subtract from what is no list", **topic(key, SUBTRACT, "1"))
    c.error("an unknown operation", **topic(key, 9, "1"))
    c.error("set to nothing", **topic(key, SET, None))
    c.any("delete with a value", **topic(key, DELETE, "1"))
    c.error("an unknown config", **topic("what", SET, "1"))
    c.any("delete an unknown config", **topic("what", DELETE, None))
    c.error("no number", **topic(key, SET, "long"))
    c.error("out of range", **topic(key, SET, "-7"))
    c.error("a key twice", **of(resource(TOPIC, "t", (key, SET, "1"), (key, SET, "2"))))
    c.error(
        "a resource twice", **of(resource(TOPIC, "t", (key, SET, "1")), resource(TOPIC, "t", (policy, SET, "compact")))
    )
    c.any("no changes", **of(resource(TOPIC, "t")))
    c.error("an unknown topic", **of(resource(TOPIC, "missing", (key, SET, "1"))))
    c.ok("this broker", **of(resource(BROKER, "1", ("log.retention.ms", SET, "100000"))))
    c.ok("all brokers", **of(resource(BROKER, "", ("log.retention.ms", SET, "100000"))))
    c.any("another broker", **of(resource(BROKER, "2", ("log.retention.ms", SET, "100000"))))
    c.error(
        "a config that is read at the start", **of(resource(BROKER, "1", ("offsets.topic.num.partitions", SET, "3")))
    )
    c.ok("a logger", **of(resource(BROKER_LOGGER, "1", (LOGGER, SET, "ERROR"))))
    c.ok("a logger, back to its parent's level", **of(resource(BROKER_LOGGER, "1", (LOGGER, DELETE, None))))
    c.error("an unknown logger", **of(resource(BROKER_LOGGER, "1", ("some.other", SET, "INFO"))))
    c.error("an unknown level", **of(resource(BROKER_LOGGER, "1", (LOGGER, SET, "LOUD"))))
    c.error("append to a logger", **of(resource(BROKER_LOGGER, "1", (LOGGER, APPEND, "INFO"))))
    c.error("the loggers of another broker", **of(resource(BROKER_LOGGER, "2", (LOGGER, SET, "INFO"))))
    c.ok("a group", **of(resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))))
    c.error("a group, out of range", **of(resource(GROUP, "g", ("consumer.session.timeout.ms", SET, "1"))))
    c.error("an empty group id", **of(resource(GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))))
    c.error("client metrics", **of(resource(CLIENT_METRICS, "m", ("interval.ms", SET, "1"))))
    c.error("an unknown type", **of(resource(99, "x")))
    c.error(
        "several, good and bad",
        **of(resource(TOPIC, "t", (key, SET, "5")), resource(TOPIC, "missing", (key, SET, "5"))),
    )
    c.ok("in the end", **topic(key, SET, "9", validate_only=True))


@script(LIST_CONFIG_RESOURCES)
def list_config_resources_script(c: Conversation) -> None:
    create_topic(c, "b")
    create_topic(c, "a")
    set_config(c, GROUP, "g", "consumer.session.timeout.ms", "50000")
    if c.version >= 1:
        for kind in (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP):
            c.ok(f"type {kind}", resource_types=[kind])
        c.ok("several, one of them twice", resource_types=[GROUP, TOPIC, GROUP])
        c.error("an unknown type", resource_types=[TOPIC, 3])
    c.ok("all", resource_types=[])
