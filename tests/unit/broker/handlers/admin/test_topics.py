"""CreateTopics, DeleteTopics and CreatePartitions."""

from typing import Any
from uuid import UUID

import pytest

from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

CREATE_TOPIC = (ResourceType.TOPIC, Operation.CREATE)


def wish(name: str, partitions: int = 1, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1, **fields}


def codes(rows: Any) -> dict[str, int]:
    return {row.name: row.error_code.value for row in rows}


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_in_every_version(kit: HandlerKit, version: int) -> None:
    answer = await kit.ask(ApiKey.CREATE_TOPICS, version, topics=[wish("t", 3)], timeout=1000)
    (row,) = answer.topics
    assert (row.name, row.error_code.value, row.error_message) == ("t", 0, None)
    assert len(kit.image.topics["t"].partitions) == 3
    assert kit.append("t", "first", index=2) == 0, "it takes writes when the answer is there"
    if version >= 5:
        assert (row.num_partitions, row.replication_factor) == (3, 1)
        shown = {config.name: config for config in row.configs}
        assert shown["retention.ms"].value == "604800000"
        assert shown["retention.ms"].config_source == 5
    if version >= 7:
        assert row.topic_id == kit.image.topics["t"].topic_id


async def test_configs_and_defaults_are_taken(kit: HandlerKit) -> None:
    answer = await kit.ask(
        ApiKey.CREATE_TOPICS,
        topics=[
            {
                "name": "t",
                "num_partitions": -1,
                "replication_factor": -1,
                "configs": [{"name": "cleanup.policy", "value": "compact"}],
            }
        ],
    )
    (row,) = answer.topics
    assert row.num_partitions == kit.settings.integer("num.partitions")
    policy = next(config for config in row.configs if config.name == "cleanup.policy")
    assert (policy.value, policy.config_source, policy.read_only) == ("compact", 1, False)
    assert kit.partition("t").log.config.compacts


async def test_replicas_may_be_assigned_by_hand(kit: HandlerKit) -> None:
    by_hand = [{"partition_index": index, "broker_ids": (1,)} for index in range(2)]
    answer = await kit.ask(
        ApiKey.CREATE_TOPICS,
        topics=[{"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": by_hand}],
    )
    assert codes(answer.topics) == {"t": 0}
    assert len(kit.image.topics["t"].partitions) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (wish("a b"), 17),
        (wish(""), 17),
        (wish("x" * 250), 17),
        (wish("__cluster_metadata"), 42),
        (wish("t", 0), 37),
        ({**wish("t"), "replication_factor": 3}, 38),
        ({**wish("t"), "configs": [{"name": "retention.mss", "value": "1"}]}, 40),
        ({**wish("t"), "configs": [{"name": "retention.ms", "value": "soon"}]}, 40),
        (wish("there"), 36),
        (
            {
                "name": "t",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": (1,)}] * 2,
            },
            39,
        ),
    ],
)
async def test_what_cannot_be_created_is_refused_with_a_reason(
    kit: HandlerKit, fields: dict[str, Any], code: int
) -> None:
    await kit.create("there")
    answer = await kit.ask(ApiKey.CREATE_TOPICS, topics=[fields, wish("good")])
    bad, good = answer.topics
    assert bad.error_code.value == code
    assert bad.error_message
    assert bad.topic_id is None
    assert good.error_code.value == 0, "one bad topic does not spoil its neighbour"


async def test_a_topic_that_is_named_twice_is_not_created(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.CREATE_TOPICS, topics=[wish("t"), wish("t", 2), wish("u")])
    assert codes(answer.topics) == {"t": 42, "u": 0}
    assert set(kit.image.topics) == {"u"}


async def test_rule_29_validating_creates_nothing(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.CREATE_TOPICS, topics=[wish("t", 2), wish("a b")], validate_only=True)
    assert codes(answer.topics) == {"t": 0, "a b": 17}
    assert answer.topics[0].num_partitions == 2
    assert answer.topics[0].topic_id is None
    assert not kit.image.topics


async def test_creating_needs_permission_on_the_cluster_or_the_topic(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll()
    assert codes((await kit.ask(ApiKey.CREATE_TOPICS, topics=[wish("t")])).topics) == {"t": 29}
    kit.authorizer = DenyAll(CREATE_TOPIC)
    (row,) = (await kit.ask(ApiKey.CREATE_TOPICS, topics=[wish("t")])).topics
    assert row.error_code.value == 0
    assert (row.configs, row.topic_config_error_code, row.num_partitions) == (None, 29, -1)


@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name_in_every_version(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    named = {"topics": [{"name": "t"}, {"name": "u"}]} if version == 6 else {"topic_names": ("t", "u")}
    answer = await kit.ask(ApiKey.DELETE_TOPICS, version, **named)
    assert codes(answer.responses) == {"t": 0, "u": 3}
    assert not kit.image.topics


async def test_topics_are_deleted_by_id(kit: HandlerKit) -> None:
    topic_id = await kit.create("t")
    answer = await kit.ask(
        ApiKey.DELETE_TOPICS,
        topics=[{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": UUID(int=5)}],
    )
    rows = {row.topic_id: (row.name, row.error_code.value) for row in answer.responses}
    assert rows == {topic_id: ("t", 0), UUID(int=5): (None, 100)}
    assert not kit.image.topics


async def test_a_topic_is_named_either_by_name_or_by_id(kit: HandlerKit) -> None:
    topic_id = await kit.create("t")
    answer = await kit.ask(
        ApiKey.DELETE_TOPICS, topics=[{"name": "t", "topic_id": topic_id}, {"name": None, "topic_id": None}]
    )
    assert [row.error_code.value for row in answer.responses] == [42, 42]
    assert "t" in kit.image.topics


async def test_a_topic_that_is_named_twice_is_not_deleted(kit: HandlerKit) -> None:
    topic_id = await kit.create("t")
    answer = await kit.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "t"}, {"name": "t"}])
    assert {row.error_code.value for row in answer.responses} == {42}
    assert "t" in kit.image.topics
    answer = await kit.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "t"}, {"name": None, "topic_id": topic_id}])
    assert sorted(row.error_code.value for row in answer.responses) == [0, 42]


@pytest.mark.parametrize(("version", "code"), [(2, 42), (3, 73), (6, 73)])
async def test_deletion_can_be_switched_off(version: int, code: int) -> None:
    kit = await HandlerKit(delete_topic_enable="false").start()
    await kit.create("t")
    named = {"topics": [{"name": "t"}]} if version == 6 else {"topic_names": ("t",)}
    answer = await kit.ask(ApiKey.DELETE_TOPICS, version, **named)
    assert codes(answer.responses) == {"t": code}


async def test_who_may_not_delete_a_topic_does_not_learn_whether_it_exists(kit: HandlerKit) -> None:
    topic_id = await kit.create("t")
    kit.authorizer = DenyAll()
    answer = await kit.ask(
        ApiKey.DELETE_TOPICS, topics=[{"name": "t"}, {"name": "u"}, {"name": None, "topic_id": topic_id}]
    )
    assert [(row.name, row.error_code.value) for row in answer.responses] == [("t", 29), ("u", 29), (None, 29)]
    assert "t" in kit.image.topics


@pytest.mark.parametrize("version", range(4))
async def test_rule_33_added_partitions_are_answered_one_row_a_topic(kit: HandlerKit, version: int) -> None:
    await kit.create("t", 2)
    answer = await kit.ask(
        ApiKey.CREATE_PARTITIONS,
        version,
        topics=[{"name": "t", "count": 4, "assignments": None}, {"name": "u", "count": 2, "assignments": None}],
    )
    assert codes(answer.results) == {"t": 0, "u": 3}
    assert kit.append("t", "first", index=3) == 0


async def test_partitions_can_only_be_added(kit: HandlerKit) -> None:
    await kit.create("t", 2)
    answer = await kit.ask(ApiKey.CREATE_PARTITIONS, topics=[{"name": "t", "count": 1, "assignments": None}])
    assert codes(answer.results) == {"t": 37}
    assert answer.results[0].error_message


async def test_rule_29_validating_adds_nothing(kit: HandlerKit) -> None:
    await kit.create("t", 2)
    answer = await kit.ask(
        ApiKey.CREATE_PARTITIONS, topics=[{"name": "t", "count": 4, "assignments": None}], validate_only=True
    )
    assert codes(answer.results) == {"t": 0}
    assert len(kit.image.topics["t"].partitions) == 2


async def test_new_partitions_may_be_assigned_by_hand(kit: HandlerKit) -> None:
    await kit.create("t", 1)
    good = [{"name": "t", "count": 2, "assignments": [{"broker_ids": (1,)}]}]
    assert codes((await kit.ask(ApiKey.CREATE_PARTITIONS, topics=good)).results) == {"t": 0}
    bad = [{"name": "t", "count": 3, "assignments": [{"broker_ids": (9,)}]}]
    assert codes((await kit.ask(ApiKey.CREATE_PARTITIONS, topics=bad)).results) == {"t": 39}


async def test_a_topic_that_is_named_twice_does_not_grow(kit: HandlerKit) -> None:
    await kit.create("t", 1)
    asked = [{"name": "t", "count": 2, "assignments": None}, {"name": "t", "count": 3, "assignments": None}]
    assert codes((await kit.ask(ApiKey.CREATE_PARTITIONS, topics=asked)).results) == {"t": 42}


async def test_adding_partitions_needs_permission(kit: HandlerKit) -> None:
    await kit.create("t", 1)
    kit.authorizer = DenyAll()
    asked = [{"name": "t", "count": 2, "assignments": None}]
    assert codes((await kit.ask(ApiKey.CREATE_PARTITIONS, topics=asked)).results) == {"t": 29}
