"""Topics that another client deletes, creates again or enlarges while messages come in over REST and gRPC."""

import itertools
import json
import random
from collections.abc import Iterator

import grpc
import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace.rpc import headrace_pb2 as pb
from headrace.testing import LocalBroker
from tests.integration.rpc.kit import Rpc, connected, refusal_of

TIMEOUT_S = 60.0
MIB = 1024 * 1024
NDJSON = {"content-type": "application/x-ndjson"}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True, settings={"auto.create.topics.enable": "true"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def rpc(broker: LocalBroker) -> Iterator[Rpc]:
    with connected(broker.grpc_address, ("grpc.max_receive_message_length", -1)) as rpc:
        yield rpc


class Other:
    """Another client of the cluster: the gateway does not see what it does."""

    def __init__(self, broker: LocalBroker) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create(self, name: str, partitions: int, **configs: str) -> None:
        new = NewTopic(name, partitions, config={key.replace("_", "."): value for key, value in configs.items()})
        self._admin.create_topics([new])[name].result(TIMEOUT_S)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(TIMEOUT_S)

    def grow(self, name: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(TIMEOUT_S)

    def has(self, name: str) -> bool:
        return name in self._admin.list_topics(timeout=TIMEOUT_S).topics


@pytest.fixture(scope="module")
def other(broker: LocalBroker) -> Other:
    return Other(broker)


@pytest.fixture
def topic() -> str:
    return f"changed-{next(_numbers)}"


def send(rest: httpx.Client, topic: str, **message: object) -> httpx.Response:
    return rest.post(f"/topics/{topic}/messages", json={"value": "v", **message})


def upload(rest: httpx.Client, topic: str, *lines: dict[str, object]) -> httpx.Response:
    return rest.post(f"/topics/{topic}/messages", content="\n".join(map(json.dumps, lines)), headers=NDJSON)


def one_in_each(rest: httpx.Client, topic: str, partitions: int) -> None:
    for partition in range(partitions):
        assert send(rest, topic, partition=partition).status_code == 200


def test_a_deleted_topic_is_not_created_by_a_message(rest, other, topic):
    other.create(topic, 4)
    one_in_each(rest, topic, 4)
    other.delete(topic)
    answer = send(rest, topic)
    assert (answer.status_code, answer.json()["detail"]) == (404, f"there is no topic {topic}")
    assert not other.has(topic)


def test_a_topic_with_fewer_partitions_takes_messages(rest, rpc, other, topic):
    other.create(topic, 4)
    one_in_each(rest, topic, 4)
    for partition in range(4):
        rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=partition, records=[pb.Record(value=b"v")]))
    other.delete(topic)
    other.create(topic, 2)
    gone = send(rest, topic, partition=3)
    assert (gone.status_code, gone.json()["detail"]) == (404, f"{topic} has partitions 0 to 1, and no 3")
    for number in range(8):
        assert send(rest, topic, key=str(number)).status_code == 200
    with pytest.raises(grpc.RpcError) as caught:
        rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=3, records=[pb.Record(value=b"v")]))
    refusal = refusal_of(caught.value)
    assert (refusal.status, refusal.retriable) == (grpc.StatusCode.UNAVAILABLE, True)
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=[pb.Record(key=b"k", value=b"v")]))


def test_lines_for_partitions_that_are_gone_may_be_retried(rest, other, topic):
    other.create(topic, 4)
    one_in_each(rest, topic, 4)
    other.delete(topic)
    other.create(topic, 2)
    lines: list[dict[str, object]] = [{"key": str(number), "value": "v"} for number in range(50)]
    answer = upload(rest, topic, *lines)
    assert (answer.status_code, answer.json()["retriable"]) == (503, True), answer.text
    again = upload(rest, topic, *lines)
    assert (again.status_code, again.json()["written"]) == (200, 50)


def test_a_new_partition_takes_messages_at_once(rest, rpc, other, topic):
    other.create(topic, 1)
    one_in_each(rest, topic, 1)
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=0, records=[pb.Record(value=b"v")]))
    other.grow(topic, 2)
    assert send(rest, topic, partition=1).json()["offset"] == 0
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=1, records=[pb.Record(value=b"v")]))
    other.grow(topic, 3)
    answer = upload(rest, topic, {"value": "v", "partition": 2})
    assert (answer.status_code, answer.json()) == (200, {"topic": topic, "written": 1})
    missing = upload(rest, topic, {"value": "v", "partition": 3})
    assert (missing.status_code, missing.json()["line"]) == (404, 1)


def test_messages_are_as_large_as_the_topic_allows(rest, rpc, other, topic):
    other.create(topic, 1, max_message_bytes=str(8 * MIB))
    large = random.Random(1).randbytes(7 * MIB)
    too_large = random.Random(1).randbytes(9 * MIB)
    path, headers = f"/topics/{topic}/messages", {"content-type": "application/octet-stream"}
    assert rest.post(path, content=large, headers=headers).status_code == 200
    assert rest.post(path, content=too_large, headers=headers).json()["kafka_error"] == "MESSAGE_TOO_LARGE"
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=[pb.Record(value=large)]))
    with pytest.raises(grpc.RpcError) as caught:
        rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=[pb.Record(value=too_large)]))
    assert refusal_of(caught.value).reason == "MESSAGE_TOO_LARGE"
    assert rest.get(f"/topics/{topic}/partitions/0/offsets").json()["end_offset"] == 2
