"""A producer with several requests in flight, the first of which is refused: each is written once, in their order."""

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.sync.configs import ResourceType, alter
from headrace.client.sync.transport import Connection
from headrace.records.builder import NewRecord, build_batch
from headrace.testing import LocalBroker
from tests.integration.raw import SECONDS_MAX, RawConnection

NONE, NOT_ENOUGH_REPLICAS = 0, 19


def batch(sequence: int) -> bytes:
    return build_batch([NewRecord(0, None, b"v")], producer_id=1000, producer_epoch=0, base_sequence=sequence)


def needs_replicas(broker: LocalBroker, count: int) -> None:
    with Connection("127.0.0.1", broker.port, SECONDS_MAX) as admin:
        assert alter(admin, ResourceType.TOPIC, "t", {"min.insync.replicas": str(count)}, ()) is None


def test_the_second_is_told_what_the_first_was_told_though_it_could_be_written() -> None:
    with LocalBroker() as broker, RawConnection(broker.port) as client:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1)])["t"].result(SECONDS_MAX)
        assert client.produce_error("t", batch(0)) == (NONE, 0)
        needs_replicas(broker, 2)
        assert client.produce_error("t", batch(1))[0] == NOT_ENOUGH_REPLICAS
        needs_replicas(broker, 1)
        assert client.produce_error("t", batch(2))[0] == NOT_ENOUGH_REPLICAS
        assert client.produce_error("t", batch(1)) == (NONE, 1)
        assert client.produce_error("t", batch(2)) == (NONE, 2)
        assert client.produce_error("t", batch(1)) == (NONE, 1), "it is there already"
        assert client.produce_error("t", batch(0)) == (NONE, 0)
