"""Changing configs, and seeing what they come to."""

from uuid import UUID

import pytest

from headrace.config.settings import Listener, Settings
from headrace.config.values import BROKER_CONFIGS, TOPIC_CONFIGS
from headrace.core.controller.config_control import (
    LEVELS,
    Alteration,
    Operation,
    alter_configs,
    altered_levels,
    legacy_alter_configs,
    level_name,
)
from headrace.core.controller.config_describe import (
    BrokerLayers,
    ConfigSource,
    Synonym,
    broker_layers,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from headrace.core.controller.replica_placer import new_partitions
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import ConfigResource, Decision, ResourceType
from headrace.model.errors import ErrorCode, InvalidConfig, RequestError, UnknownTopic

SET, DELETE, APPEND, SUBTRACT = Operation
NO_LAYERS = BrokerLayers({}, {}, {})
TOPIC = ConfigResource(ResourceType.TOPIC, "t")
BROKER = ConfigResource(ResourceType.BROKER, "1")
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")
LOGGERS = ConfigResource(ResourceType.BROKER_LOGGER, "1")


def cluster(configs: dict[str, str] | None = None) -> MetadataImage:
    image = MetadataImage()
    states = new_partitions([(1,)], 0)
    image.apply(
        1,
        {
            records.broker_key(1): records.encode_broker((), None),
            records.topic_key("t"): records.encode_topic(UUID(int=1), configs or {}),
            **records.block_writes(UUID(int=1), states, [0]),
        },
    )
    return image


def alter(image: MetadataImage, resource: ConfigResource, *alterations: Alteration) -> RequestError | None:
    """Carry it out; the refusal if there is one."""
    outcome = alter_configs({resource: alterations}, image, NO_LAYERS)[resource]
    return finish(image, outcome)


def replace(image: MetadataImage, resource: ConfigResource, configs: dict[str, str | None]) -> RequestError | None:
    return finish(image, legacy_alter_configs({resource: configs}, image, NO_LAYERS)[resource])


def finish(image: MetadataImage, outcome: Decision[None] | RequestError) -> RequestError | None:
    if isinstance(outcome, RequestError):
        return outcome
    image.apply(image.revision + 1, outcome.writes)
    return None


def test_setting_and_deleting_leaves_the_other_keys_alone() -> None:
    image = cluster({"retention.ms": "1", "flush.ms": "2"})
    assert alter(image, TOPIC, Alteration("retention.ms", DELETE, None), Alteration("segment.ms", SET, "3")) is None
    assert dict(image.topics["t"].configs) == {"flush.ms": "2", "segment.ms": "3"}


def test_the_legacy_alteration_replaces_everything() -> None:
    image = cluster({"retention.ms": "1", "flush.ms": "2"})
    assert replace(image, TOPIC, {"segment.ms": "3"}) is None
    assert dict(image.topics["t"].configs) == {"segment.ms": "3"}


def test_appending_starts_from_the_default_and_repeats_nothing() -> None:
    image = cluster()
    assert alter(image, TOPIC, Alteration("cleanup.policy", APPEND, "compact,delete")) is None
    assert image.topics["t"].configs["cleanup.policy"] == "delete,compact"


def test_appending_starts_from_what_the_broker_says() -> None:
    layers = BrokerLayers({}, {}, {"log.cleanup.policy": "compact"})
    outcome = alter_configs({TOPIC: [Alteration("cleanup.policy", APPEND, "delete")]}, cluster(), layers)[TOPIC]
    assert isinstance(outcome, Decision)
    (value,) = outcome.writes.values()
    assert value is not None
    assert records.decode_topic(value).configs == {"cleanup.policy": "compact,delete"}


def test_subtracting_takes_items_away() -> None:
    image = cluster({"cleanup.policy": "compact,delete"})
    assert alter(image, TOPIC, Alteration("cleanup.policy", SUBTRACT, "delete")) is None
    assert image.topics["t"].configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_can_be_appended_to(operation: Operation) -> None:
    refusal = alter(cluster(), TOPIC, Alteration("retention.ms", operation, "1"))
    assert isinstance(refusal, InvalidConfig)
    assert "use SET" in str(refusal)


@pytest.mark.parametrize(
    ("alteration", "error"),
    [
        (Alteration("retention.ms", SET, "soon"), InvalidConfig),
        (Alteration("retention.ms", SET, None), InvalidConfig),
        (Alteration("cleanup.policy", APPEND, None), InvalidConfig),
        (Alteration("cleanup.policy", APPEND, "compcat"), InvalidConfig),
        (Alteration("retention.ms", 9, "1"), RequestError),
        (Alteration("no.such.key", SET, "1"), InvalidConfig),
        (Alteration("no.such.key", DELETE, None), InvalidConfig),
        (Alteration("remote.storage.enable", SET, "true"), InvalidConfig),
    ],
)
def test_wrong_topic_changes_are_refused(alteration: Alteration, error: type[RequestError]) -> None:
    assert type(alter(cluster(), TOPIC, alteration)) is error


def test_unknown_topic_configs_are_refused_with_the_nearest_name() -> None:
    for refusal in (
        alter(cluster(), TOPIC, Alteration("retension.ms", SET, "1")),
        replace(cluster(), TOPIC, {"retension.ms": "1"}),
    ):
        assert isinstance(refusal, InvalidConfig)
        assert "did you mean retention.ms?" in str(refusal)


def test_a_key_can_be_changed_only_once_in_a_request() -> None:
    changes = [Alteration("retention.ms", SET, "1"), Alteration("retention.ms", DELETE, None)]
    assert type(alter(cluster(), TOPIC, *changes)) is RequestError


def test_unknown_resources_are_refused() -> None:
    change = Alteration("log.retention.ms", SET, "1")
    image = cluster()
    assert isinstance(alter(image, ConfigResource(ResourceType.TOPIC, "u"), change), UnknownTopic)
    for name in ("2", "x", "-1", "１"):
        assert type(alter(image, ConfigResource(ResourceType.BROKER, name), change)) is RequestError
    assert type(alter(image, ConfigResource(16, "client-metrics"), change)) is RequestError
    assert type(replace(image, LOGGERS, {"root": "INFO"})) is RequestError


def test_one_broker_and_all_brokers_are_set_apart() -> None:
    image = cluster()
    assert alter(image, BROKER, Alteration("log.retention.ms", SET, "1")) is None
    assert alter(image, ALL_BROKERS, Alteration("log.retention.ms", SET, "02")) is None
    assert {name: dict(configs) for name, configs in image.broker_configs.items()} == {
        "1": {"log.retention.ms": "1"},
        "": {"log.retention.ms": "2"},
    }
    assert alter(image, BROKER, Alteration("log.retention.ms", DELETE, None)) is None
    assert "1" not in image.broker_configs, "nothing set is nothing kept"


@pytest.mark.parametrize("operation", [SET, DELETE])
def test_configs_that_need_a_restart_are_refused_with_a_clear_message(operation: Operation) -> None:
    refusal = alter(cluster(), BROKER, Alteration("num.partitions", operation, "1"))
    assert refusal is not None
    assert refusal.code is ErrorCode.INVALID_REQUEST
    assert "restart" in str(refusal)
    assert "restart" in str(replace(cluster(), BROKER, {"num.partitions": "1"}))


def test_unknown_broker_configs_are_refused_with_the_nearest_name() -> None:
    refusal = alter(cluster(), BROKER, Alteration("log.retention.msec", SET, "1"))
    assert isinstance(refusal, InvalidConfig)
    assert "did you mean log.retention.ms?" in str(refusal)


def test_broker_configs_that_contradict_each_other_are_refused() -> None:
    changes = [
        Alteration("log.cleaner.min.compaction.lag.ms", SET, "9"),
        Alteration("log.cleaner.max.compaction.lag.ms", SET, "1"),
    ]
    assert isinstance(alter(cluster(), ALL_BROKERS, *changes), InvalidConfig)


def test_a_topics_rows_hold_every_config_with_where_it_comes_from() -> None:
    layers = BrokerLayers(
        own={"log.segment.bytes": "2000000"},
        cluster={"log.segment.bytes": "3000000", "message.max.bytes": "77"},
        static={"log.retention.hours": "2"},
    )
    rows = {row.name: row for row in describe_topic({"retention.ms": "5"}, layers)}
    assert set(rows) == {name for name, definition in TOPIC_CONFIGS.items() if not definition.internal}
    assert (rows["retention.ms"].value, rows["retention.ms"].source) == ("5", ConfigSource.TOPIC)
    assert rows["retention.ms"].synonyms == (
        Synonym("retention.ms", "5", ConfigSource.TOPIC),
        Synonym("log.retention.hours", "2", ConfigSource.STATIC_BROKER),
        Synonym("log.retention.hours", "168", ConfigSource.DEFAULT),
    )
    assert (rows["segment.bytes"].value, rows["segment.bytes"].source) == ("2000000", ConfigSource.DYNAMIC_BROKER)
    assert rows["max.message.bytes"].source is ConfigSource.DYNAMIC_DEFAULT_BROKER
    assert (rows["flush.ms"].value, rows["flush.ms"].source) == (str(2**63 - 1), ConfigSource.DEFAULT)
    assert all(row.doc and not row.read_only for row in rows.values())
    assert describe_topic({}, layers)[0].synonyms


def test_a_value_in_hours_is_shown_in_milliseconds() -> None:
    layers = BrokerLayers({}, {}, {"log.retention.hours": "2"})
    (row,) = [row for row in describe_topic({}, layers) if row.name == "retention.ms"]
    assert (row.value, row.source) == ("7200000", ConfigSource.STATIC_BROKER)


def test_a_brokers_rows_tell_set_from_default_and_fixed_from_changeable() -> None:
    settings = Settings(
        node_id=1, listeners=(Listener("PLAINTEXT", "localhost", 0),), broker_configs={"num.partitions": "9"}
    )
    image = cluster()
    alter(image, BROKER, Alteration("log.retention.ms", SET, "1"))
    rows = {row.name: row for row in describe_broker(broker_layers(image, settings, 1))}
    assert set(rows) == {name for name, definition in BROKER_CONFIGS.items() if not definition.internal}
    assert (rows["num.partitions"].value, rows["num.partitions"].read_only) == ("9", True)
    assert rows["num.partitions"].source is ConfigSource.STATIC_BROKER
    assert rows["listeners"].value == "PLAINTEXT://localhost:0"
    assert (rows["log.retention.ms"].value, rows["log.retention.ms"].read_only) == ("1", False)
    assert rows["node.id"].value == "1"
    assert rows["auto.create.topics.enable"].source is ConfigSource.DEFAULT


def test_another_brokers_static_settings_are_not_made_up_from_ours() -> None:
    settings = Settings(node_id=1, broker_configs={"num.partitions": "9"})
    rows = {row.name: row for row in describe_broker(broker_layers(cluster(), settings, 2))}
    assert rows["num.partitions"].source is ConfigSource.DEFAULT


def test_the_cluster_default_shows_only_what_is_set_for_all() -> None:
    image = cluster()
    assert describe_cluster_default(image) == []
    alter(image, ALL_BROKERS, Alteration("log.retention.ms", SET, "1"))
    (row,) = describe_cluster_default(image)
    assert (row.name, row.value, row.source) == ("log.retention.ms", "1", ConfigSource.DYNAMIC_DEFAULT_BROKER)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_kafka_can_be_set(level: str) -> None:
    assert altered_levels(LOGGERS, [Alteration("headrace", SET, level)], {"root", "headrace"}, 1) == {"headrace": level}
    assert level_name(LEVELS[level]) == level


def test_a_logger_can_be_given_back_to_its_parent_but_the_root_cannot() -> None:
    known = {"root", "headrace"}
    assert altered_levels(LOGGERS, [Alteration("headrace", DELETE, None)], known, 1) == {"headrace": None}
    with pytest.raises(RequestError, match="root"):
        altered_levels(LOGGERS, [Alteration("root", DELETE, None)], known, 1)


@pytest.mark.parametrize(
    ("resource", "alteration", "reason"),
    [
        (LOGGERS, Alteration("headrace", SET, "LOUD"), "FATAL, ERROR, WARN, INFO, DEBUG, TRACE"),
        (LOGGERS, Alteration("headrace", SET, "info"), "not a log level"),
        (LOGGERS, Alteration("headrace", SET, None), "not a log level"),
        (LOGGERS, Alteration("headrace", APPEND, "INFO"), "not a list"),
        (LOGGERS, Alteration("headrac", SET, "INFO"), "did you mean headrace"),
        (LOGGERS._replace(name="2"), Alteration("headrace", SET, "INFO"), "broker 1"),
        (LOGGERS._replace(name=""), Alteration("headrace", SET, "INFO"), "broker 1"),
    ],
)
def test_wrong_log_levels_are_refused(resource: ConfigResource, alteration: Alteration, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        altered_levels(resource, [alteration], {"root", "headrace"}, 1)


def test_a_level_between_two_words_is_shown_as_the_more_talkative_one() -> None:
    assert level_name(25) == "INFO"
    assert level_name(1) == "TRACE"


# Groups

GROUP = ConfigResource(ResourceType.GROUP, "a group")
SESSION = "consumer.session.timeout.ms"


def test_a_group_has_configs_of_its_own_within_the_brokers_limits() -> None:
    image = cluster()
    assert alter(image, GROUP, Alteration(SESSION, SET, "50000")) is None
    assert image.group_configs == {"a group": {SESSION: "50000"}}
    for text in ("44999", "60001", "soon"):
        assert type(alter(image, GROUP, Alteration(SESSION, SET, text))) is InvalidConfig
    assert type(alter(image, GROUP, Alteration("consumer.session.timeout", SET, "1"))) is InvalidConfig
    assert alter(image, GROUP, Alteration(SESSION, DELETE, None)) is None
    assert image.group_configs == {}


def test_the_session_of_a_group_is_longer_than_its_heartbeats_are_apart() -> None:
    layers = BrokerLayers({}, {}, {"group.consumer.min.session.timeout.ms": "1"})
    change = {GROUP: (Alteration(SESSION, SET, "5000"),)}
    assert type(alter_configs(change, cluster(), layers)[GROUP]) is InvalidConfig


def test_a_group_is_described_with_what_the_broker_would_say() -> None:
    rows = {row.name: row for row in describe_group({SESSION: "50000"}, NO_LAYERS)}
    assert rows[SESSION].value == "50000"
    assert rows[SESSION].source == ConfigSource.GROUP
    assert rows[SESSION].synonyms[1] == Synonym("group.consumer.session.timeout.ms", "45000", ConfigSource.DEFAULT)
    assert rows["consumer.heartbeat.interval.ms"].source == ConfigSource.DEFAULT
