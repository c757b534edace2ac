"""A reader that completes a history, beside transactions that nobody ends."""

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker
from headrace.testing.history import History, RecordedProducer, TopicPartition, read_everything

PLACE = TopicPartition("t", 0)
PATIENCE_S = 60.0


def test_everything_is_also_what_lies_behind_a_transaction_that_was_left_open() -> None:
    """The one who left it is gone, and the broker aborts it when its time is over."""
    with LocalBroker() as broker:
        client = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(client)
        admin.create_topics([NewTopic(PLACE.topic, 1)])[PLACE.topic].result(PATIENCE_S)
        leaving = Producer({**client, "transactional.id": "leaves", "transaction.timeout.ms": 3000})
        leaving.init_transactions(PATIENCE_S)
        leaving.begin_transaction()
        leaving.produce(PLACE.topic, "0", partition=0)
        assert leaving.flush(PATIENCE_S) == 0
        history = History()
        with RecordedProducer(history, "stays", client) as producer:
            value = producer.send(PLACE)
            assert producer.flush(PATIENCE_S)
        assert [one.value for one in read_everything(history, client, [PLACE])] == [value]
