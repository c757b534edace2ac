"""A transactional producer that commits, aborts, or is killed in the middle of a transaction.

Runs as a process of its own: `python -m tests.torture.transacting '{"name": …}'`. Events go to stdout, one a line. In a
thread it could not be killed, and librdkafka 2.16 aborts the whole process if a transactional producer is destroyed
while it adds a partition to a transaction: a broker thread that terminates calls the response handler before the main
thread has counted the request (`rd_kafka_txn_handle_AddPartitionsToTxn: Assertion txn_req_cnt > 0`).
"""

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import KafkaException

from headrace.testing.history import History, RecordedProducer, TopicPartition
from tests.torture.plan import SECONDS_MAX, Dice

IS_OF_NO_USE = 75  # the exit code of a client whose error only a new client can leave behind


@dataclass(frozen=True)
class Life:
    name: str
    settings: dict[str, Any]
    places: list[tuple[str, int]]
    first_value: int
    seed: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Transactions:
    def __init__(self, producer: RecordedProducer, places: list[TopicPartition], dice: Dice) -> None:
        self._producer = producer
        self._places = places
        self._dice = dice
        self.stopping = False

    def stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        self._producer.confluent.init_transactions(SECONDS_MAX)
        while not self.stopping:
            self._run_one()

    def _run_one(self) -> None:
        self._producer.begin()
        for _ in range(self._dice.randrange(1, 6)):
            self._producer.send(self._dice.choice(self._places))
        luck = self._dice.random()
        if luck < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)
        if luck < 0.3:
            self._producer.flush(SECONDS_MAX)
            self._producer.abort(SECONDS_MAX)
            return
        try:
            self._producer.commit(SECONDS_MAX)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._producer.abort(SECONDS_MAX)


def main() -> int:
    life = Life(**json.loads(sys.argv[1]))
    history = History("/dev/stdout", first_value=life.first_value)
    producer = RecordedProducer(history, life.name, life.settings)
    transactions = Transactions(producer, [TopicPartition(*place) for place in life.places], Dice(life.seed))
    signal.signal(signal.SIGTERM, transactions.stop)
    try:
        transactions.run()
    except KafkaException as error:
        if not (error.args[0].fatal() or error.args[0].retriable() or error.args[0].txn_requires_abort()):
            raise
        return IS_OF_NO_USE
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the producer is not destroyed, see above
