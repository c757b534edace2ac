"""The rules that other brokers broke, each by its number, over a real socket: requests and answers."""

from typing import Any

import pytest

from headrace.broker.server import Broker
from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import message_class
from headrace.records.batch import parse_header
from tests.integration.rules.kit import BROKEN, Client, SlowDisk, batch, running, values
from tests.unit.protocol.kio_messages import kio_read

BY_VERSION = [(api, version) for api, served in SERVED.items() for version in range(served.lowest, served.highest + 1)]


# ── 1, 2, 3: what is advertised ──


@pytest.mark.parametrize("version", [5, 99, 32767])
async def test_rule_01_a_newer_api_versions_is_answered_in_version_0_with_error_35_and_the_list(
    client: Client, version: int
) -> None:
    client.send_bytes(ApiKey.API_VERSIONS, version, b"\x05abcd\x05abcd\x00", is_answered=False)
    frame = await client.receive_bytes()
    answer = kio_read(message_class(ApiKey.API_VERSIONS, 0, "response"), frame[4:])
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {row.api_key for row in answer.api_keys} == set(SERVED)
    again = await client.ask(ApiKey.API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    assert again.error_code == 0, "and the connection goes on"


async def test_rule_02_produce_is_advertised_from_version_0_and_refused_below_3(broker: Broker, client: Client) -> None:
    answer = await client.ask(ApiKey.API_VERSIONS, 0)
    produce = next(row for row in answer.api_keys if row.api_key == ApiKey.PRODUCE)
    assert (produce.min_version, produce.max_version) == (0, SERVED[ApiKey.PRODUCE].highest)
    for version in range(3):
        async with Client.of(broker) as other:
            other.send_bytes(ApiKey.PRODUCE, version, bytes(20), is_answered=False)
            assert await other.is_closed()


@pytest.mark.parametrize(("api", "version"), BY_VERSION, ids=[f"{api.name}-{version}" for api, version in BY_VERSION])
async def test_rule_03_every_advertised_version_is_answered_in_its_own_format(
    client: Client, api: ApiKey, version: int
) -> None:
    """With the schema's defaults: mostly an empty request. What comes back is read by kio to the last byte."""
    fields: dict[str, Any] = {"acks": -1} if api is ApiKey.PRODUCE else {}
    if api is ApiKey.API_VERSIONS and version >= 3:
        fields = {"client_software_name": "test", "client_software_version": "1"}
    await client.ask(api, version, **fields)
    assert (await client.ask(ApiKey.API_VERSIONS, 0)).error_code == 0


# ── 4: acks=0, order ──


async def test_rule_04_acks_0_has_no_answer_and_is_written(client: Client) -> None:
    await client.create("t")
    for number in range(10):
        client.send_produce("t", batch(f"value {number}"), acks=0)
    await client.ask(ApiKey.API_VERSIONS, 0)
    assert values((await client.fetch("t")).records) == [f"value {number}" for number in range(10)]


@pytest.mark.parametrize(("topic", "records"), [("nobody", batch("x")), ("t", BROKEN), ("t", None)])
async def test_rule_04_acks_0_that_fails_closes_the_connection(
    broker: Broker, client: Client, topic: str, records: bytes | None
) -> None:
    await client.create("t")
    async with Client.of(broker) as other:
        other.send_produce(topic, records, acks=0)
        assert await other.is_closed()
    assert (await client.fetch("t")).high_watermark == 0


async def test_rule_04_answers_keep_their_order_behind_a_parked_fetch_and_a_slow_disk() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client, Client.of(broker) as other:
            await client.create("t", 2)
            disk.may_sync.clear()
            client.send_fetch("t", index=1, max_wait=10_000)
            client.send_produce("t", batch("waits for the disk"))
            client.send(ApiKey.METADATA, topics=None)
            client.send_produce("t", batch("acks=1 would be ready"), acks=1)
            client.send(ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0)
            assert await client.has_nothing()
            assert (await other.ask(ApiKey.API_VERSIONS, 0)).error_code == 0, "others are served meanwhile"
            disk.may_sync.set()
            assert await client.has_nothing(), "the fetch is still parked"
            await other.produce("t", batch("wakes the fetch"), index=1)
            assert values((await client.receive()).responses[0].partitions[0].records) == ["wakes the fetch"]
            assert (await client.receive()).responses[0].partition_responses[0].base_offset == 0
            assert [topic.name for topic in (await client.receive()).topics] == ["t"]
            assert (await client.receive()).responses[0].partition_responses[0].base_offset == 1
            await client.receive()


async def test_rule_04_a_thousand_pipelined_produces_are_all_answered_in_order() -> None:
    with SlowDisk() as disk:
        async with running(disk) as broker, Client.of(broker) as client:
            await client.create("t")
            disk.may_sync.clear()
            for number in range(1_000):
                client.send_produce("t", batch(f"value {number}"))
            disk.may_sync.set()
            for number in range(1_000):
                row = (await client.receive()).responses[0].partition_responses[0]
                assert (row.error_code, row.base_offset) == (0, number)
            syncs = sum(1 for operation, path in disk.operations if operation == "sync" and path.endswith(".log"))
            assert syncs < 200, "one sync serves many"


# ── 16, 17, 19, 20: whose partition, which epoch, which topic ──


async def elsewhere(client: Client, broker: Broker) -> None:
    """The second partition of `t` moves to another broker, as far as this one knows."""
    image = broker.image.topics["t"]
    other = image.partitions[1]._replace(replicas=(2,), isr=(2,), leader=2, leader_epoch=9)
    moved = image._replace(partitions=(image.partitions[0], other))
    broker.partitions._topics["t"] = moved
    for key in ("t", image.topic_id):
        broker.partitions._held.pop((key, 1))


async def test_rule_16_what_another_broker_leads_is_not_unknown(broker: Broker, client: Client) -> None:
    topic_id = await client.create("t", 2)
    await elsewhere(client, broker)
    row = await client.produce("t", batch("x"), index=1)
    assert (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch) == (6, 2, 9)
    row = await client.fetch("t", index=1, version=17, topic_id=topic_id, max_wait=10_000)
    assert (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch) == (6, 2, 9)
    assert (await client.produce("t", batch("x"), index=2)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.produce("nobody", batch("x"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("difference", "code"), [(-1, 74), (0, 0), (1, 75)])
async def test_rule_17_the_leader_epoch_of_a_fetch_is_checked(
    broker: Broker, client: Client, difference: int, code: int
) -> None:
    await client.create("t")
    partition = broker.partitions.get("t", 0)
    partition.leader_epoch = 5
    await client.produce("t", batch("a"))
    row = await client.fetch("t", leader_epoch=5 + difference)
    assert row.error_code == code
    if not code:
        assert parse_header(row.records).leader_epoch == 5, "and it stands in the batches"


async def test_rule_19_a_recreated_topic_is_another_topic(client: Client) -> None:
    old = await client.create("t")
    await client.produce("t", batch("old"))
    old_epoch = parse_header((await client.fetch("t")).records).leader_epoch
    await client.ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "t", "topic_id": None}], timeout=1_000)
    new = await client.create("t")
    assert new != old
    assert (await client.produce("t", batch("x"), version=13, topic_id=old)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    row = await client.fetch("t", version=17, topic_id=old)
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    row = await client.produce("t", batch("new"), version=13, topic_id=new)
    assert (row.error_code, row.base_offset) == (0, 0)
    row = await client.fetch("t", version=17, topic_id=new)
    assert values(row.records) == ["new"]
    assert parse_header(row.records).leader_epoch > old_epoch


async def test_rule_20_a_topic_that_metadata_creates_takes_writes_at_once(client: Client) -> None:
    for number in range(5):
        name = f"created-{number}"
        client.send(ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": None}], allow_auto_topic_creation=True)
        client.send_produce(name, batch("first"))
        topic = (await client.receive()).topics[0]
        assert (topic.error_code, topic.partitions[0].leader_id) == (0, 1)
        assert (await client.receive()).responses[0].partition_responses[0].error_code == 0


# ── 25: throttling ──


async def test_rule_25_nobody_is_throttled_and_every_answer_says_so(client: Client) -> None:
    """There are no quotas yet: the field is there, and it is 0."""
    await client.create("t")
    client.send_produce("t", batch("x"))
    client.send_fetch("t")
    client.send(ApiKey.METADATA, topics=None)
    client.send(ApiKey.LIST_OFFSETS, replica_id=-1, isolation_level=0)
    for _ in range(4):
        answer = await client.receive()
        assert answer.throttle_time.total_seconds() == 0
