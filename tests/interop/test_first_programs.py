"""The two Java programs that every newcomer writes first, with Kafka's client: one sends, the other receives."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker
from tests.interop.java_programs import start

TOPIC = "test-topic"
SECONDS_MAX = 60.0

pytestmark = pytest.mark.interop


def send(broker: LocalBroker) -> None:
    with start("FirstProducer", broker.bootstrap, TOPIC) as producer:
        producer.wait()


@pytest.mark.parametrize("more", [[], ["group.protocol=consumer"]], ids=["classic", "consumer"])
def test_what_one_program_sends_the_other_receives(more: list[str]) -> None:
    with LocalBroker(memory=False, settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 10)])[TOPIC].result(SECONDS_MAX)
        with start("FirstConsumer", broker.bootstrap, TOPIC, *more) as consumer:
            sent = 0
            # It begins at the end of the topic, so what was sent before it had its partitions is not for it.
            while not consumer.lines:
                send(broker)
                sent += 1
            heard = len(consumer.lines)
            send(broker)
            consumer.wait_for(lambda: len(consumer.lines) > heard)
            assert set(consumer.lines) == {"Received: Hello World!"}
            assert len(consumer.lines) <= sent + 1
