"""`kill -9` under load, again and again: nothing acknowledged is lost, doubled or reordered."""

import random
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalBroker
from tests.integration.history import Seen, Value, problems

KILLS = 50
PARTITIONS = 3
PRODUCERS = 2
SECONDS_MAX = 60.0
TOPIC = "crash"
# A kill comes after this many acknowledgements at most; sometimes after none, while the broker still recovers.
ACKS_BETWEEN_KILLS_MAX = 400
# Keeps a producer from running far ahead of a broker that is down.
IN_FLIGHT_MAX = 500

# Crashes must also hit the moment in which a log rolls: small segments, and keys that fill them.
SMALLEST_SEGMENT_BYTES = 1024 * 1024
KEY = bytes(2000)

# Clients that come back at once: the time between two kills should be the broker's, not a back-off's.
IMPATIENT = {"reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 20, "log_level": 0}


class Load(threading.Thread):
    """An idempotent producer that never stops sending, and notes what it was promised."""

    def __init__(self, bootstrap: str, name: str, codec: str, progress: threading.Condition) -> None:
        super().__init__(name=name)
        self.acked: list[Seen] = []
        self.failed: list[str] = []
        self.sent = 0
        self._progress = progress
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": codec,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "queue.buffering.max.messages": IN_FLIGHT_MAX,
                "retry.backoff.ms": 5,
                "message.timeout.ms": int(SECONDS_MAX * 1000),
                "error_cb": self._error,
                **IMPATIENT,
            }
        )

    def run(self) -> None:
        while not self._stopping.is_set() and not self.failed:
            value = Value(self.name, self.sent)
            try:
                self._producer.produce(
                    TOPIC, value.encode(), KEY, partition=self.sent % PARTITIONS, on_delivery=self._delivered
                )
                self.sent += 1
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.05)
        if self._producer.flush(SECONDS_MAX):
            self.failed.append("not everything was delivered in the end")

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _delivered(self, error, message) -> None:
        with self._progress:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acked.append(Seen(message.partition(), message.offset(), Value.decode(message.value())))
            self._progress.notify_all()

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failed.append(str(error))


class Reader(threading.Thread):
    """Follows the topic through every crash, and notes what it was shown."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="reader")
        self.polled: list[Seen] = []
        self.ends = [0] * PARTITIONS
        self._stopping = threading.Event()
        self._consumer = assigned_consumer(bootstrap)

    def run(self) -> None:
        while not self._stopping.is_set():
            self.polled += poll(self._consumer)
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def assigned_consumer(bootstrap: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            **IMPATIENT,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    return consumer


def poll(consumer: Consumer) -> list[Seen]:
    messages = consumer.consume(1000, timeout=0.1)
    # What the client says about a broker that is down just now is no record.
    return [
        Seen(message.partition(), message.offset(), Value.decode(message.value()))
        for message in messages
        if message.error() is None
    ]


def read_back(bootstrap: str, count: int) -> list[Seen]:
    """Everything from the beginning, partition by partition in the order of their offsets."""
    consumer = assigned_consumer(bootstrap)
    ends = [
        consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), SECONDS_MAX)[1]
        for partition in range(PARTITIONS)
    ]
    assert sum(ends) == count, "the log holds as many records as were sent"
    log: list[Seen] = []
    while len(log) < count:
        log += poll(consumer)
    consumer.close()
    return sorted(log, key=lambda seen: (seen.partition, seen.offset))


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SECONDS_MAX)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fifty_kills_under_load_lose_double_and_reorder_nothing_that_was_acknowledged(request):
    seed = random.SystemRandom().randrange(2**32)
    request.node.user_properties.append(("seed", seed))
    chance = random.Random(seed)
    progress = threading.Condition()
    with LocalBroker(memory=False, settings={"log.segment.bytes": str(SMALLEST_SEGMENT_BYTES)}) as broker:
        create_topic(broker.bootstrap)
        loads = [
            Load(broker.bootstrap, f"producer-{number}", codec, progress)
            for number, codec in zip(range(PRODUCERS), ("none", "lz4"), strict=True)
        ]
        reader = Reader(broker.bootstrap)
        for thread in (*loads, reader):
            thread.start()
        try:
            for _ in range(KILLS):
                wait_for_acks(loads, progress, chance.randrange(ACKS_BETWEEN_KILLS_MAX))
                broker.kill()
                broker.start()
        finally:
            for thread in (*loads, reader):
                thread.stop()
        failed = [failure for load in loads for failure in load.failed]
        assert not failed, f"seed {seed}"
        acked = [seen for load in loads for seen in load.acked]
        assert len(acked) == sum(load.sent for load in loads)
        log = read_back(broker.bootstrap, len(acked))
        assert len(list(Path(broker.data_dir, f"{TOPIC}-0").glob("*.log"))) > 1, "the log rolled on the way"
    assert problems(acked, reader.polled, log) == [], f"seed {seed}"


def wait_for_acks(loads: list[Load], progress: threading.Condition, count: int) -> None:
    def acked() -> int:
        return sum(len(load.acked) for load in loads)

    with progress:
        wanted = acked() + count
        in_time = progress.wait_for(lambda: acked() >= wanted or any(load.failed for load in loads), SECONDS_MAX)
    assert in_time, "producers come back after a crash"


def test_a_topic_that_was_acknowledged_is_there_after_a_kill_and_a_deleted_one_is_not():
    with LocalBroker(memory=False) as broker:
        for _ in range(5):
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, **IMPATIENT})
            kept, dropped = f"kept-{uuid4().hex[:8]}", f"dropped-{uuid4().hex[:8]}"
            wanted = [NewTopic(kept, 2, 1, config={"retention.ms": "1000"}), NewTopic(dropped, 2, 1)]
            for creation in admin.create_topics(wanted).values():
                creation.result(SECONDS_MAX)
            admin.delete_topics([dropped])[dropped].result(SECONDS_MAX)
            broker.kill()
            broker.start()
            topics = admin.list_topics(timeout=SECONDS_MAX).topics
            assert kept in topics
            assert len(topics[kept].partitions) == 2
            assert dropped not in topics
