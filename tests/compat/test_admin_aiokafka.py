"""The admin calls of aiokafka, which speaks the oldest versions of them that any living client does."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.compat.client_driver import SECONDS_MAX
from tests.compat.nodes import of_one_broker
from tests.compat.topics import until_all_brokers_know


@pytest.fixture
async def aio_admin(bootstrap) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    yield client
    await client.close()


async def test_a_topic_is_created_described_and_deleted(aio_admin, bootstrap):
    name = "aiokafka-admin"
    created = await aio_admin.create_topics([NewTopic(name, 2, 1)])
    assert [(row[0], row[1]) for row in created.topic_errors] == [(name, 0)]
    until_all_brokers_know(bootstrap, name, 2)
    (described,) = await aio_admin.describe_topics([name])
    assert (described["topic"], described["error_code"]) == (name, 0)
    assert sorted(part["partition"] for part in described["partitions"]) == [0, 1]
    assert name in await aio_admin.list_topics()
    deleted = await aio_admin.delete_topics([name])
    assert [(row[0], row[1]) for row in deleted.topic_error_codes] == [(name, 0)]
    until_all_brokers_know(bootstrap, name, 0)
    assert name not in await aio_admin.list_topics()


async def test_partitions_are_added(aio_admin, bootstrap, topic):
    result = await aio_admin.create_partitions({topic: NewPartitions(3)})
    assert [(row[0], row[1]) for row in result.topic_errors] == [(topic, 0)]
    until_all_brokers_know(bootstrap, topic, 3)
    (described,) = await aio_admin.describe_topics([topic])
    assert len(described["partitions"]) == 3


async def test_configs_are_described_and_altered(aio_admin, topic):
    change = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"})
    (altered,) = await aio_admin.alter_configs([change])
    assert [row[0] for row in altered.resources] == [0]
    async with asyncio.timeout(SECONDS_MAX):
        while await retention_ms(aio_admin, topic) != "1000":
            continue  # the broker that was asked does not know it yet


async def retention_ms(aio_admin, topic: str) -> str:
    (described,) = await aio_admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((error, _, _, name, entries),) = described.resources
    assert (error, name) == (0, topic)
    return {entry[0]: entry[1] for entry in entries}["retention.ms"]


async def test_records_are_deleted_up_to_an_offset(aio_admin, bootstrap, topic):
    place = TopicPartition(topic, 0)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(5):
            await producer.send_and_wait(topic, b"%d" % number)
    assert await aio_admin.delete_records({place: RecordsToDelete(before_offset=3)}) == {place: 3}
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        assert await consumer.beginning_offsets([place]) == {place: 3}


@of_one_broker
async def test_the_cluster_is_described(aio_admin, bootstrap):
    cluster = await aio_admin.describe_cluster()
    (node,) = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == bootstrap
    assert cluster["controller_id"] == node["node_id"]
    assert cluster["cluster_id"]
