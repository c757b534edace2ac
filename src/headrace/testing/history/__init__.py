"""history: records the operations and responses of clients, and checks them for anomalies.

history = History()
with RecordedProducer(history, "p1", {"bootstrap.servers": …}) as producer:
    producer.send(TopicPartition("orders", 0))
…
assert check(history.events) == []
"""

from headrace.model.ids import TopicPartition
from headrace.testing.history.check import Anomaly, Problem, check
from headrace.testing.history.delivery import Delivery, delivery
from headrace.testing.history.events import (
    Assign,
    Begin,
    Crash,
    Ended,
    Ending,
    Event,
    NotSent,
    Poll,
    Seen,
    Send,
    Sent,
    Subscribe,
)
from headrace.testing.history.recorded import RecordedConsumer, RecordedProducer, read_everything
from headrace.testing.history.recording import History, read_history
from headrace.testing.history.transactions import wait_until_settled

__all__ = [
    "Anomaly",
    "Assign",
    "Begin",
    "Crash",
    "Delivery",
    "Ended",
    "Ending",
    "Event",
    "History",
    "NotSent",
    "Poll",
    "Problem",
    "RecordedConsumer",
    "RecordedProducer",
    "Seen",
    "Send",
    "Sent",
    "Subscribe",
    "TopicPartition",
    "check",
    "delivery",
    "read_everything",
    "read_history",
    "wait_until_settled",
]
