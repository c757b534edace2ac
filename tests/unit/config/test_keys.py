"""The tables are complete and consistent, and the value that holds is the nearest one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.definition import ConfigDef, OneOf, Range, ReplicaPairs
from headrace.config.keys.node import ALIASES, NODE_CONFIGS, SAME_MEANING
from headrace.config.values import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    LogConfig,
    broker_value_for_topic,
    check_topic_configs,
    log_config,
    topic_config_value,
)
from headrace.model.errors import InvalidConfig

# Name, type, default and limits of Apache Kafka 4.3.0's topic configs, as its own LogConfig prints them.
KAFKA_TOPIC_CONFIGS = """\
cleanup.policy LIST delete compact,delete
compression.gzip.level INT -1 1..9,-1
compression.lz4.level INT 9 1..17
compression.type STRING producer uncompressed,zstd,lz4,snappy,gzip,producer
compression.zstd.level INT 3 -131072..22
delete.retention.ms LONG 86400000 0..
file.delete.delay.ms LONG 60000 0..
flush.messages LONG 9223372036854775807 1..
flush.ms LONG 9223372036854775807 0..
follower.replication.throttled.replicas LIST - pairs
index.interval.bytes INT 4096 0..
leader.replication.throttled.replicas LIST - pairs
local.retention.bytes LONG -2 -2..
local.retention.ms LONG -2 -2..
max.compaction.lag.ms LONG 9223372036854775807 1..
max.message.bytes INT 1048588 0..
message.timestamp.after.max.ms LONG 3600000 0..
message.timestamp.before.max.ms LONG 9223372036854775807 0..
message.timestamp.type STRING CreateTime CreateTime,LogAppendTime
min.cleanable.dirty.ratio DOUBLE 0.5 0..1
min.compaction.lag.ms LONG 0 0..
min.insync.replicas INT 1 1..
preallocate BOOLEAN false -
remote.log.copy.disable BOOLEAN false -
remote.log.delete.on.disable BOOLEAN false -
remote.storage.enable BOOLEAN false -
retention.bytes LONG -1 -
retention.ms LONG 604800000 -1..
segment.bytes INT 1073741824 1048576..
segment.index.bytes INT 10485760 4..
segment.jitter.ms LONG 0 0..
segment.ms LONG 604800000 1..
unclean.leader.election.enable BOOLEAN false -
"""
EVERY_TABLE = {**TOPIC_CONFIGS, **BROKER_CONFIGS, **NODE_CONFIGS}


def limits(definition: ConfigDef) -> str:
    match definition.check:
        case Range(low, high, also):
            return f"{low}..{'' if high is None else high}" + ("" if also is None else f",{also}")
        case OneOf(words):
            return ",".join(words)
        case ReplicaPairs():
            return "pairs"
    return "-"


@pytest.mark.parametrize("line", KAFKA_TOPIC_CONFIGS.splitlines())
def test_topic_configs_are_kafkas(line):
    name, type_, default, allowed = line.split()
    definition = TOPIC_CONFIGS[name]
    assert (definition.type.name, definition.default_text or "-", limits(definition)) == (type_, default, allowed)


def test_only_archives_the_flush_policy_and_a_test_key_are_added_to_kafkas_topic_configs():
    kafkas = {line.split()[0] for line in KAFKA_TOPIC_CONFIGS.splitlines()}
    archive = {"archive.before.delete", "archive.schema", "archive.table", "archive.until"}
    assert set(TOPIC_CONFIGS) - kafkas == {*archive, "flush.policy", "internal.segment.bytes"}


@pytest.mark.parametrize("definition", EVERY_TABLE.values(), ids=lambda one: one.name)
def test_every_default_is_a_value_that_its_own_key_accepts(definition):
    if definition.default is not None:
        assert definition.parse(definition.default_text) == definition.default


@pytest.mark.parametrize("definition", EVERY_TABLE.values(), ids=lambda one: one.name)
def test_every_key_is_explained_in_a_sentence(definition):
    assert definition.doc[0].isupper() or definition.doc.startswith("acks")
    assert definition.doc.endswith(".")


def test_every_synonym_is_a_broker_config():
    for definition in EVERY_TABLE.values():
        assert set(definition.synonyms) <= set(BROKER_CONFIGS), definition.name


def test_second_names_lead_to_keys_and_groups_hold_broker_keys():
    assert {alias.key for alias in ALIASES.values()} <= {*BROKER_CONFIGS, *NODE_CONFIGS}
    assert {key for group in SAME_MEANING for key in group} <= set(BROKER_CONFIGS)


def test_the_typed_view_of_nothing_set_has_kafkas_defaults():
    assert log_config({}, {}) == LogConfig()
    for field, value in ((name, getattr(LogConfig(), name)) for name in LogConfig.__dataclass_fields__):
        assert log_config({}, {}).__getattribute__(field) == value


def test_the_topics_word_counts_before_the_brokers():
    broker = {"log.retention.ms": "5", "log.segment.bytes": "2000000"}
    config = log_config({"retention.ms": "7"}, broker)
    assert (config.retention_ms, config.segment_bytes) == (7, 2_000_000)


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({}, 604_800_000),
    ],
)
def test_the_finest_unit_of_retention_counts(broker, expected):
    assert log_config({}, broker).retention_ms == expected


def test_hours_to_roll_become_milliseconds():
    assert log_config({}, {"log.roll.hours": "1"}).segment_ms == 3_600_000
    assert broker_value_for_topic("log.roll.jitter.hours", "2") == 7_200_000


@pytest.mark.parametrize(
    ("policy", "compacts", "deletes"),
    [("compact", True, False), ("delete", False, True), ("compact,delete", True, True), ("", False, False)],
)
def test_cleanup_policies_are_read_as_questions(policy, compacts, deletes):
    config = log_config({"cleanup.policy": policy}, {})
    assert (config.compacts, config.deletes) == (compacts, deletes)


def test_small_segments_are_for_tests_only():
    with pytest.raises(InvalidConfig, match="at least 1048576"):
        log_config({"segment.bytes": "100"}, {})
    assert log_config({"internal.segment.bytes": "100"}, {}).segment_bytes == 100


def test_an_unset_key_without_a_default_is_none():
    assert topic_config_value(TOPIC_CONFIGS["internal.segment.bytes"], {}, {}) is None


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"retention_ms": "1"}, "did you mean retention.ms"),
        ({"frobnicate": "1"}, "Unknown topic config name: frobnicate"),
        ({"min.insync.replicas": "0"}, "at least 1"),
        ({"remote.storage.enable": "TRUE"}, "no remote storage"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "must not be greater"),
    ],
)
def test_topic_configs_that_cannot_work_are_refused(overrides, reason):
    with pytest.raises(InvalidConfig, match=reason):
        check_topic_configs(overrides, {})


def test_a_topic_may_contradict_the_broker_it_lives_on():
    check_topic_configs({"min.compaction.lag.ms": "1"}, {"log.cleaner.max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfig, match="must not be greater"):
        check_topic_configs({"min.compaction.lag.ms": "9"}, {"log.cleaner.max.compaction.lag.ms": "5"})


@given(st.dictionaries(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=12), max_size=4))
def test_no_topic_configs_do_anything_but_pass_or_be_refused(overrides):
    try:
        check_topic_configs(overrides, {})
    except InvalidConfig:
        return
    assert isinstance(log_config(overrides, {}), LogConfig)
