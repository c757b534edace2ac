"""Events of a history: operations that a client began, and the results that it got.

A history is a list of events. Only the order of events of one client is significant: clients run concurrently, in
threads or in processes, and their clocks are not compared. A client name is used for one run: after a crash its
successor has another one. Each value is sent once in a history.

    Send ─► Sent       acknowledged, perhaps with its offset
         └► NotSent    certainly not in the log
         └► (nothing)  unknown

    Begin ─► Send … ─► Ending(commits=True)  ─► Ended(committed=True)
          │                                  └► (nothing): unknown
          └► (nothing), or Ending(commits=False): never committed
"""

import json
from typing import NamedTuple

from headrace.model.ids import TopicPartition


class Seen(NamedTuple):
    """A record, at the offset where a consumer read it."""

    place: TopicPartition
    offset: int
    value: int


class Send(NamedTuple):
    """The client sends a value to a partition.

    Sends of one client to one partition are expected to keep their order.
    """

    client: str
    place: TopicPartition
    value: int


class Sent(NamedTuple):
    client: str
    value: int
    offset: int | None = None


class NotSent(NamedTuple):
    client: str
    value: int


class Poll(NamedTuple):
    """Records of one poll, in order. Consumers are `read_committed`."""

    client: str
    records: tuple[Seen, ...]


class Assign(NamedTuple):
    """The client reads these partitions from an offset of its choice from now on, and must not skip a record."""

    client: str
    places: tuple[TopicPartition, ...]


class Subscribe(NamedTuple):
    """The group assigns partitions to the client from now on: it may skip what other members read, and rewind."""

    client: str
    topics: tuple[str, ...]


class Begin(NamedTuple):
    """The client begins a transaction: its sends until the end belong to it."""

    client: str


class Ending(NamedTuple):
    """The client is about to commit or abort its transaction."""

    client: str
    commits: bool


class Ended(NamedTuple):
    """The client got the outcome of its transaction."""

    client: str
    committed: bool


class Crash(NamedTuple):
    """The client has ended. Operations without a result remain unknown."""

    client: str


Event = Send | Sent | NotSent | Poll | Assign | Subscribe | Begin | Ending | Ended | Crash

_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Send, Sent, NotSent, Poll, Assign, Subscribe, Begin, Ending, Ended, Crash)
}


def to_line(event: Event) -> str:
    return json.dumps([type(event).__name__, *event])


def from_line(line: str) -> Event:
    name, *fields = json.loads(line)
    if name == "Poll":
        client, rows = fields
        return Poll(client, tuple(Seen(TopicPartition(*place), offset, value) for place, offset, value in rows))
    if name == "Send":
        client, place, value = fields
        return Send(client, TopicPartition(*place), value)
    if name == "Assign":
        client, places = fields
        return Assign(client, tuple(TopicPartition(*place) for place in places))
    if name == "Subscribe":
        client, topics = fields
        return Subscribe(client, tuple(topics))
    return _KINDS[name](*fields)
