import asyncio
from uuid import UUID

import pytest

from headrace.broker.controller import failure_detector
from headrace.core.image import records
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

VERSIONS = range(14)
TOPIC_DESCRIBE = (ResourceType.TOPIC, Operation.DESCRIBE)


def asked(version: int, *names: str) -> list[object]:
    """Topics as a request of this version names them."""
    return [{"name": name} for name in names]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_is_found_in_every_version(kit: HandlerKit, version: int) -> None:
    topic_id = await kit.create("t", 3)
    answer = await kit.ask(ApiKey.METADATA, version, topics=asked(version, "t"))
    (topic,) = answer.topics
    assert (topic.name, topic.error_code.value) == ("t", 0)
    assert [(one.partition_index, one.leader_id, one.replica_nodes) for one in topic.partitions] == [
        (number, 1, (1,)) for number in range(3)
    ]
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [(1, "127.0.0.1", 9092)]
    if version >= 1:
        assert answer.controller_id == 1
        assert answer.brokers[0].rack == "here"
    if version >= 2:
        assert answer.cluster_id == kit.image.cluster_id
    if version >= 7:
        assert {one.leader_epoch for one in topic.partitions} == {kit.partition("t").leader_epoch}
    if version >= 10:
        assert topic.topic_id == topic_id


async def test_clients_are_sent_to_the_listener_they_came_through(kit: HandlerKit) -> None:
    await kit.create("t")
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "t"), listener="INTERNAL")
    assert [(broker.host, broker.port) for broker in answer.brokers] == [("10.0.0.1", 9093)]


@pytest.mark.parametrize(("version", "code"), [(5, 5), (6, 72), (12, 72)])
async def test_a_leader_without_the_clients_listener_is_told_as_such(kit: HandlerKit, version: int, code: int) -> None:
    await kit.create("t")
    answer = await kit.ask(ApiKey.METADATA, version, topics=asked(version, "t"), listener="ELSEWHERE")
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code.value, partition.leader_id, partition.offline_replicas) == (code, -1, (1,))
    assert answer.brokers == ()


async def test_while_no_session_stands_clients_keep_the_addresses_they_had(kit: HandlerKit) -> None:
    kit.image.apply(kit.image.revision + 1, {records.session_key(1): None})
    answer = await kit.ask(ApiKey.METADATA, topics=[])
    assert [(broker.node_id, broker.port) for broker in answer.brokers] == [(1, 9092)]


async def test_version_0_lists_living_replicas_only(kit: HandlerKit) -> None:
    await kit.create("t")
    answer = await kit.ask(ApiKey.METADATA, 0, topics=asked(0, "t"), listener="ELSEWHERE")
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code.value, partition.replica_nodes, partition.isr_nodes) == (5, (), ())


@pytest.mark.parametrize("version", VERSIONS)
async def test_rule_20_all_topics_are_listed_when_all_are_asked_for(kit: HandlerKit, version: int) -> None:
    for name in ("a", "b"):
        await kit.create(name)
    answer = await kit.ask(ApiKey.METADATA, version, topics=() if version == 0 else None)
    assert {topic.name for topic in answer.topics} == {"a", "b"}


@pytest.mark.parametrize("version", range(1, 14))
async def test_rule_20_none_are_listed_when_none_are_asked_for(kit: HandlerKit, version: int) -> None:
    await kit.create("a")
    assert (await kit.ask(ApiKey.METADATA, version, topics=())).topics == ()


@pytest.mark.parametrize("version", [4, 9, 13])
async def test_rule_20_a_topic_is_created_only_if_the_request_allows_it(kit: HandlerKit, version: int) -> None:
    refused = await kit.ask(ApiKey.METADATA, version, topics=asked(version, "new"), allow_auto_topic_creation=False)
    assert refused.topics[0].error_code.value == 3
    assert "new" not in kit.image.topics
    made = await kit.ask(ApiKey.METADATA, version, topics=asked(version, "new"), allow_auto_topic_creation=True)
    assert made.topics[0].error_code.value == 0
    assert len(made.topics[0].partitions) == kit.settings.integer("num.partitions")


async def test_rule_20_the_answer_comes_when_the_new_partitions_take_writes(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "new"))
    for partition in answer.topics[0].partitions:
        assert partition.leader_id == 1
        assert kit.append("new", "first", index=partition.partition_index) == 0


@pytest.mark.parametrize(("brokers", "code"), [(3, 5), (2, 38)], ids=["one is away", "there are too few"])
async def test_a_new_topic_waits_for_brokers_that_are_to_come(
    monkeypatch: pytest.MonkeyPatch, brokers: int, code: int
) -> None:
    kit = await HandlerKit(default_replication_factor="3").start()
    monkeypatch.setattr(kit, "size_of_cluster", lambda: brokers)
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "new"))
    assert [topic.error_code.value for topic in answer.topics] == [code]
    await kit.close()


async def test_rule_20_a_broker_may_forbid_automatic_creation() -> None:
    kit = await HandlerKit(auto_create_topics_enable="false").start()
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "new"))
    assert answer.topics[0].error_code.value == 3


async def test_a_name_that_no_topic_can_have_is_an_invalid_topic(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "a b", ""))
    assert [(topic.name, topic.error_code.value) for topic in answer.topics] == [("a b", 17), ("", 17)]


async def test_internal_topics_are_not_created_by_asking_for_them(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "__consumer_offsets"))
    assert (answer.topics[0].error_code.value, answer.topics[0].is_internal) == (3, True)


async def test_a_name_that_collides_is_not_created(kit: HandlerKit) -> None:
    await kit.create("a.b")
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "a_b"))
    assert answer.topics[0].error_code.value == 17


async def test_a_topic_that_is_named_twice_is_answered_once(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "new", "new"))
    assert [topic.name for topic in answer.topics] == ["new"]


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_found_by_id(kit: HandlerKit, version: int) -> None:
    topic_id = await kit.create("t")
    answer = await kit.ask(ApiKey.METADATA, version, topics=[{"topic_id": topic_id, "name": None}])
    assert [(topic.name, topic.topic_id, topic.error_code.value) for topic in answer.topics] == [("t", topic_id, 0)]


@pytest.mark.parametrize("version", [12, 13])
async def test_an_unknown_id_is_told_as_such_and_creates_nothing(kit: HandlerKit, version: int) -> None:
    answer = await kit.ask(ApiKey.METADATA, version, topics=[{"topic_id": UUID(int=99), "name": None}])
    assert [(topic.name, topic.topic_id, topic.error_code.value) for topic in answer.topics] == [
        (None, UUID(int=99), 100)
    ]
    assert not kit.image.topics


async def test_rule_19_a_recreated_topic_has_another_id_and_a_higher_leader_epoch(kit: HandlerKit) -> None:
    await kit.create("t")
    before = (await kit.ask(ApiKey.METADATA, topics=asked(13, "t"))).topics[0]
    await kit.controller.delete_topics(["t"])
    gone = (await kit.ask(ApiKey.METADATA, topics=asked(13, "t"), allow_auto_topic_creation=False)).topics[0]
    await kit.create("t")
    after = (await kit.ask(ApiKey.METADATA, topics=asked(13, "t"))).topics[0]
    assert gone.error_code.value == 3
    assert after.topic_id != before.topic_id
    assert after.partitions[0].leader_epoch > before.partitions[0].leader_epoch


async def test_rule_17_a_new_leader_epoch_is_told_at_once(kit: HandlerKit) -> None:
    await kit.create("t")
    before = (await kit.ask(ApiKey.METADATA, topics=asked(13, "t"))).topics[0].partitions[0].leader_epoch
    await kit.controller.start(kit.image.brokers[1].endpoints, unclean=True)
    after = (await kit.ask(ApiKey.METADATA, topics=asked(13, "t"))).topics[0].partitions[0].leader_epoch
    assert after == before + 1


async def test_kept_blocks_follow_every_change(kit: HandlerKit) -> None:
    async def everything() -> dict[str, int]:
        answer = await kit.ask(ApiKey.METADATA, topics=None)
        return {topic.name: len(topic.partitions) for topic in answer.topics}

    from headrace.core.controller.topic_control import NewPartitions

    assert await everything() == {}
    await kit.create("a", 2)
    assert await everything() == {"a": 2}
    await kit.controller.create_partitions([NewPartitions("a", 5)])
    await kit.create("b")
    assert await everything() == {"a": 5, "b": 1}
    await kit.controller.delete_topics(["a"])
    assert await everything() == {"b": 1}


@pytest.mark.parametrize("version", [8, 10, 11, 13])
async def test_authorized_operations_are_told_when_asked_for(kit: HandlerKit, version: int) -> None:
    await kit.create("t")
    silent = await kit.ask(ApiKey.METADATA, version, topics=asked(version, "t"))
    told = await kit.ask(ApiKey.METADATA, version, topics=asked(version, "t"), include_topic_authorized_operations=True)
    assert silent.topics[0].topic_authorized_operations == -(2**31)
    assert told.topics[0].topic_authorized_operations == sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))


@pytest.mark.parametrize("version", [8, 10])
async def test_operations_on_the_cluster_are_told_when_asked_for(kit: HandlerKit, version: int) -> None:
    answer = await kit.ask(ApiKey.METADATA, version, topics=(), include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


async def test_what_may_not_be_described_is_denied_whether_it_exists_or_not(kit: HandlerKit) -> None:
    topic_id = await kit.create("secret")
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "secret", "no-such-topic"))
    assert [(topic.name, topic.topic_id, topic.error_code.value) for topic in answer.topics] == [
        ("secret", None, 29),
        ("no-such-topic", None, 29),
    ]
    by_id = await kit.ask(ApiKey.METADATA, topics=[{"topic_id": topic_id, "name": None}])
    assert [(topic.name, topic.error_code.value) for topic in by_id.topics] == [(None, 29)]
    assert (await kit.ask(ApiKey.METADATA, topics=None)).topics == ()
    assert set(kit.image.topics) == {"secret"}


async def test_a_list_of_all_topics_holds_those_that_may_be_described(kit: HandlerKit) -> None:
    for name in ("mine", "yours"):
        await kit.create(name)
    kit.authorizer = DenyAll(names=["mine"])
    answer = await kit.ask(ApiKey.METADATA, topics=None)
    assert [topic.name for topic in answer.topics] == ["mine"]


async def test_who_may_describe_but_not_create_gets_no_new_topic(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll(TOPIC_DESCRIBE)
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "new"))
    assert answer.topics[0].error_code.value == 29
    assert not kit.image.topics


async def test_who_may_create_the_topic_gets_it(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll(TOPIC_DESCRIBE, (ResourceType.TOPIC, Operation.CREATE))
    answer = await kit.ask(ApiKey.METADATA, topics=asked(13, "new"))
    assert answer.topics[0].error_code.value == 0


async def test_unchanged_topics_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.broker.api.context import RequestContext
    from headrace.broker.handlers.cluster import metadata
    from headrace.broker.handlers.cluster.metadata import handle_metadata
    from headrace.protocol.messages.metadata import MetadataRequest, encode_response
    from headrace.security.authorization import ANONYMOUS

    kit = await HandlerKit().start(with_logs=False)
    for number in range(10):
        await kit.create(f"topic-{number}", 100)
    call = RequestContext(kit, ANONYMOUS, "c", "h", "PLAINTEXT", ApiKey.METADATA, 12, 1)  # type: ignore[arg-type]

    async def body() -> bytes:
        return encode_response(12, await handle_metadata(MetadataRequest(None), call))

    first = await body()
    monkeypatch.setattr(metadata, "encode_partitions", None)
    assert await body() == first


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("every_topic", [False, True])
async def test_lost_broker_is_not_shown_as_leader_until_it_responds(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch, version: int, every_topic: bool
) -> None:
    monkeypatch.setattr(failure_detector, "RESPONSE_S_MAX", 0.0)
    await kit.create("t")
    named = asked(version, "t")
    topics = ([] if version == 0 else None) if every_topic else named

    async def leader() -> int:
        return (await kit.ask(ApiKey.METADATA, version, topics=topics)).topics[0].partitions[0].leader_id

    assert await leader() == 1
    kit.lost_brokers.add(1, kit.image.brokers[1].epoch, kit.image)
    assert await leader() == -1
    kit.lost_brokers.remove(1)
    assert await leader() == 1


async def test_metadata_waits_for_the_partitions_of_a_lost_broker_only(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "RESPONSE_S_MAX", 3600.0)
    topic_id = await kit.create("t")
    kit.lost_brokers.add(1, kit.image.brokers[1].epoch, kit.image)
    await kit.ask(ApiKey.METADATA, 12, topics=[{"name": "unknown"}], allow_auto_topic_creation=False)
    waiting = [
        asyncio.create_task(kit.ask(ApiKey.METADATA, 12, topics=topics))
        for topics in ([{"name": "t"}], [{"topic_id": topic_id, "name": None}], None)
    ]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    kit.lost_brokers.remove(1)
    for response in await asyncio.gather(*waiting):
        assert response.topics[0].partitions[0].leader_id == 1
