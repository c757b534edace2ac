"""Records for the interop tests: sent with every codec, known in advance, read back with check."""

import random
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS_MAX = 60.0
QUIET = {"log_level": 0}


def create_topic(bootstrap: str, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(SECONDS_MAX)


def values(seed: int, count: int, size: int) -> list[bytes]:
    """Half of each value can be compressed, half cannot."""
    chance = random.Random(seed)
    return [chance.randbytes(size // 2) + bytes(size // 2) for _ in range(count)]


def produce(bootstrap: str, topic: str, sent: list[bytes], *, keys: int | None = None, **settings: object) -> None:
    """All of the values, in order; with `keys`, under so many different keys in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 20, **QUIET, **settings})
    failures: list[object] = []
    for number, value in enumerate(sent):
        key = b"%d" % (number % keys) if keys else None
        producer.produce(
            topic,
            value,
            key,
            headers=[("number", b"%d" % number)],
            on_delivery=lambda error, _: error and failures.append(error),
        )
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    assert not failures


def transactions(bootstrap: str, topic: str, committed: list[bytes], aborted: list[bytes]) -> None:
    """One transaction that is kept and one that is not."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "interop", **QUIET})
    producer.init_transactions(SECONDS_MAX)
    for sent, end in ((aborted, producer.abort_transaction), (committed, producer.commit_transaction)):
        producer.begin_transaction()
        for value in sent:
            producer.produce(topic, value)
        producer.flush(SECONDS_MAX)
        end(SECONDS_MAX)


def read_all(bootstrap: str, topic: str, *, isolation: str = "read_uncommitted") -> Iterator[tuple[int, bytes]]:
    """Offset and value of everything in partition 0, from its beginning to its end."""
    return ((message.offset(), message.value()) for message in read_messages(bootstrap, topic, 0, isolation))


def read_messages(bootstrap: str, topic: str, partition: int, isolation: str) -> Iterator[Message]:
    """Everything in a partition, from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        while True:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, "the end of the partition is reached in time"
            if message.error() is None:
                yield message
            elif message.error().name() == "_PARTITION_EOF":
                return
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()
