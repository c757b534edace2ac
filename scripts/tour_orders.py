"""The data of the demo: customers, a stream of synthetic orders, and the pipeline file."""

import json
import random
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from pyarrow import parquet as pq

ORDERS, TOTALS, DEAD = "orders", "totals", "orders.dead"
COLUMNS = "id bigint, customer string, amount double, at timestamp"
COUNTRIES = {"ada": "GB", "grace": "US", "alan": "GB", "edsger": "NL", "barbara": "US", "niklaus": "CH", "radia": "US"}
RECORDS_PER_S = 200
POISON_SHARE = 0.01  # half of it is not JSON, the other half has a negative amount
TICK_S = 0.05
# The clients would log the same errors 20 times per second.
QUIET = {"log_level": 2}

PIPELINE = """\
pipeline: tour
sources:
  orders:
    topic: {orders}
    format: json
    schema: {columns}
    watermark: at 2 seconds
    reject:
      the amount is negative: amount < 0
  customers:
    table: {customers}
sql: |
  select window(at, '5 seconds').start as since, country, count(*) as orders, round(sum(amount), 2) as total
  from orders join customers using (customer)
  group by window(at, '5 seconds'), country
sink:
  topic: {totals}
  key: country
dead_letters: {dead}
trigger: 1 second
"""


def write_files(folder: Path) -> Path:
    """Writes the customer table and the pipeline file; returns the path of the latter."""
    customers = folder / "customers"
    customers.mkdir(parents=True, exist_ok=True)
    names = {"customer": list(COUNTRIES), "country": list(COUNTRIES.values())}
    pq.write_table(pa.table(names), customers / "all.parquet")
    file = folder / "tour.yaml"
    text = PIPELINE.format(orders=ORDERS, totals=TOTALS, dead=DEAD, columns=COLUMNS, customers=customers.resolve())
    file.write_text(text, encoding="utf-8")
    return file


class Feeder:
    """Produces orders in a thread until it is closed."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **QUIET})
        self._dice = random.Random()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self.sent = 0
        self.poison = 0

    def __enter__(self) -> "Feeder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(TICK_S):
            for _ in range(int((time.monotonic() - began) * RECORDS_PER_S) - self.sent):
                self._order()
            self._producer.poll(0)
        self._producer.flush(5)

    def _order(self) -> None:
        customer = self._dice.choice(list(COUNTRIES))
        amount = round(self._dice.expovariate(1 / 40), 2)
        value = self._value(customer, amount)
        self._producer.produce(ORDERS, key=customer, value=value)
        self.sent += 1

    def _value(self, customer: str, amount: float) -> bytes:
        chance = self._dice.random()
        if chance < POISON_SHARE:
            self.poison += 1
        if chance < POISON_SHARE / 2:
            return b"\xde\xad\xbe\xef"
        order = {"id": self.sent, "customer": customer, "amount": amount, "at": datetime.now(UTC).isoformat()}
        if chance < POISON_SHARE:
            order["amount"] = -1.0
        return json.dumps(order).encode()


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    """Returns the values of all committed records up to the current end."""
    # librdkafka requires a group ID even with assigned partitions and without commits.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tour", "enable.auto.commit": False, **QUIET})
    values: list[bytes] = []
    try:
        found = consumer.list_topics(topic, 10).topics[topic].partitions
        places = [TopicPartition(topic, one, 0) for one in found]
        ends = {place.partition: consumer.get_watermark_offsets(place, 10)[1] for place in places}
        consumer.assign(places)
        # librdkafka returns a negative position for a partition without a consumed record.
        while any(max(place.offset, 0) < ends[place.partition] for place in consumer.position(places)):
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
    finally:
        consumer.close()
    return values
