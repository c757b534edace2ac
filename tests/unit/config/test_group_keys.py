"""Configs of groups: Kafka's own keys for what is served here, and a reason for every other."""

import pytest

from headrace.config.keys.group import GROUP_CONFIGS, check_group_configs, group_config, group_definition
from headrace.config.values import BROKER_CONFIGS
from headrace.model.errors import InvalidConfig

# The keys of Apache Kafka 4.3.0's GroupConfig, with their lowest values and the broker keys that stand behind them.
CONSUMER_KEYS = """\
consumer.assignment.interval.ms 0 group.consumer.assignment.interval.ms
consumer.heartbeat.interval.ms 1 group.consumer.heartbeat.interval.ms
consumer.session.timeout.ms 1 group.consumer.session.timeout.ms
"""
SHARE_KEYS = """\
share.assignment.interval.ms
share.auto.offset.reset
share.delivery.count.limit
share.heartbeat.interval.ms
share.isolation.level
share.partition.max.record.locks
share.record.lock.duration.ms
share.renew.acknowledge.enable
share.session.timeout.ms
"""
STREAMS_KEYS = """\
streams.assignment.interval.ms
streams.heartbeat.interval.ms
streams.initial.rebalance.delay.ms
streams.num.standby.replicas
streams.session.timeout.ms
"""
INTERVAL = "consumer.assignment.interval.ms"


def test_all_of_kafkas_keys_for_consumer_groups_are_there_and_no_others() -> None:
    found = [
        f"{name} {definition.check.low} {' '.join(definition.synonyms)}"  # type: ignore[union-attr]
        for name, definition in GROUP_CONFIGS.items()
    ]
    assert found == CONSUMER_KEYS.splitlines()


@pytest.mark.parametrize("definition", GROUP_CONFIGS.values(), ids=GROUP_CONFIGS)
def test_a_groups_default_is_the_brokers(definition) -> None:
    (synonym,) = definition.synonyms
    assert definition.default == BROKER_CONFIGS[synonym].default
    assert group_config(definition.name, {}, {synonym: "7777"}) == 7777


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "share groups") for name in SHARE_KEYS.splitlines()),
        *((name, "streams groups") for name in STREAMS_KEYS.splitlines()),
    ],
)
def test_keys_for_kinds_of_groups_that_are_not_served_are_refused_with_the_reason(name: str, kind: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} is for {kind}.* which this broker does not serve"):
        group_definition(name)


def test_a_key_that_nobody_knows_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean consumer\.session\.timeout\.ms"):
        group_definition("consumer.session.timeout")


def test_the_assignment_interval_has_the_brokers_limits() -> None:
    check_group_configs({INTERVAL: "15000"}, {})
    with pytest.raises(InvalidConfig, match="between 0 and 15000"):
        check_group_configs({INTERVAL: "15001"}, {})
    narrower = {"group.consumer.max.assignment.interval.ms": "500"}
    assert group_config(INTERVAL, {INTERVAL: "15000"}, narrower) == 500, "set before the limit was"
