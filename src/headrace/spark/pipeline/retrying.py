"""`headrace pipeline retry-dead`: dead letters go back to the partition they came from, each at most once.

The records and the note that they were sent are one transaction under an id that belongs to the dead-letter topic: a
process that dies leaves either both or neither, and of two that retry at once the later one fences the earlier. The
notes are a topic, `<dead letters>.retried`, so whoever wonders what was retried can read it with any tool.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.client.blocking.cluster import ClientSettings, Cluster
from headrace.client.blocking.records import committed_records
from headrace.client.blocking.topics import ensure_topic
from headrace.client.factory import Overrides, make_producer
from headrace.client.security import Security
from headrace.model.errors import HeadraceError
from headrace.spark.pipeline.letters import KEPT, Chosen, Letter, Retried, entry_of, homeless, letter_of

if TYPE_CHECKING:
    from confluent_kafka import Producer

# Records of one transaction. Readers of committed data wait for its end, and a kill repeats at most so many.
LETTERS_PER_TRANSACTION = 1000
TRANSACTION_TIMEOUT_MS = 60_000
WAIT_S = 60.0
# As much as the producer's queue holds. librdkafka's own limit of 1 MB would stop the retry at the first larger letter,
# and with it all that come behind; what a topic takes is the broker's business.
LETTER_BYTES_MAX = 64 * 1024 * 1024
CLIENT_ID = "headrace-retry-dead"


class RetryFailed(HeadraceError):
    """Sending stopped midway; what the message says was sent was sent for good."""


class Summary(NamedTuple):
    """Of the letters that were meant: how many there are by error, and how many of them cannot go back."""

    by_error: Counter[str]
    homeless: Counter[str]  # by topic or partition that is gone
    sent: int


class DeadLetters:
    """The dead-letter topic of a pipeline."""

    def __init__(
        self, bootstrap: str, topic: str, security: Security | None = None, retry_topic: str | None = None
    ) -> None:
        """With a retry topic letters go there, with their notes; without one to the partition they came from."""
        settings = ClientSettings(bootstrap=bootstrap, security=security or Security(), client_id=CLIENT_ID)
        self._settings = settings
        self._cluster = Cluster(settings)
        self._reading = Cluster(settings)  # a fetch is always on its way there, so nobody else may ask on it
        self.topic, self._retry_topic = topic, retry_topic
        self.ledger = f"{topic}.retried"

    def close(self) -> None:
        self._cluster.close()
        self._reading.close()

    def look(self, chosen: Chosen) -> Summary:
        """What `retry` would do now."""
        summary = Summary(Counter(), Counter(), 0)
        for letters in _handfuls(chosen.of(self._letters(), self._retried())):
            self._sorted_out(letters, summary)
        return summary

    def retry(self, chosen: Chosen) -> Summary:
        ensure_topic(self._cluster, self.ledger, KEPT)
        if self._retry_topic is not None:
            ensure_topic(self._cluster, self._retry_topic, KEPT)
        producer = self._producer()
        retried = self._retried()  # after the fence: nobody adds to it any more but this process
        summary = Summary(Counter(), Counter(), 0)
        for letters in _handfuls(chosen.of(self._letters(), retried)):
            going = self._sorted_out(letters, summary)
            self._send(producer, going, chosen.pipeline, summary.sent)
            summary = summary._replace(sent=summary.sent + len(going))
        return summary

    def _letters(self) -> Iterator[Letter]:
        for place, record in committed_records(self._reading, self.topic):
            letter = letter_of(place, record)
            if letter is not None:
                yield letter

    def _retried(self) -> Retried:
        retried = Retried()
        for _, record in committed_records(self._cluster, self.ledger):
            retried.learn(record.value)
        return retried

    def _sorted_out(self, letters: Sequence[Letter], summary: Summary) -> list[Letter]:
        """Counts them, and leaves those that can go."""
        if self._retry_topic is not None:
            summary.by_error.update(letter.error for letter in letters)
            return list(letters)
        names = sorted({letter.source.topic for letter in letters})
        found = self._cluster.patiently("listing topics", lambda: self._cluster.topics(names))
        stranded = homeless(letters, {name: topic.leaders for name, topic in found.items()})
        summary.by_error.update(letter.error for letter in letters)
        summary.homeless.update(str(letter.source) for letter in stranded)
        gone = {(letter.place, letter.offset) for letter in stranded}
        return [letter for letter in letters if (letter.place, letter.offset) not in gone]

    def _producer(self) -> "Producer":
        name = f"headrace-retry-dead-{self.topic}"
        own: Overrides = {
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.max.bytes": LETTER_BYTES_MAX,
        }
        producer = make_producer(self._settings.bootstrap, {**own, **self._settings.security.librdkafka()})
        producer.init_transactions(WAIT_S)
        return producer

    def _send(self, producer: "Producer", letters: Sequence[Letter], pipeline: str, sent: int) -> None:
        from confluent_kafka import KafkaException

        if not letters:
            return
        try:
            producer.begin_transaction()
            for letter in letters:
                self._produce(producer, letter if self._retry_topic is None else letter.to_retry(self._retry_topic))
            producer.produce(self.ledger, entry_of(letters, pipeline, int(time.time() * 1000)), partition=0)
            producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            raise RetryFailed(
                f"{sent} dead letters were sent, then: {error.args[0].str()}. Nothing else was; run it again for"
                f" the rest"
            ) from error

    @staticmethod
    def _produce(producer: "Producer", letter: Letter) -> None:
        headers: list[Any] = list(letter.headers)
        while True:
            try:
                producer.produce(
                    letter.source.topic,
                    letter.value,
                    letter.key,
                    partition=letter.source.partition,
                    timestamp=letter.timestamp,
                    headers=headers,
                )
            except BufferError:  # the queue is full: room comes as answers do
                producer.poll(0.1)
            else:
                producer.poll(0)
                return


def _handfuls(letters: Iterator[Letter]) -> Iterator[list[Letter]]:
    while taken := list(islice(letters, LETTERS_PER_TRANSACTION)):
        yield taken
