"""The events of a history: what a client began, and what it was told.

A history is a list of them. Only the order of events of one client means anything: clients run side by side, in threads
or in processes, and nobody compares their clocks. A client has one name for one life: whoever comes after a crash has
another. Each value is sent once in a history.

    Send ─► Sent       acknowledged, perhaps with its offset
         └► NotSent    certainly not in the log
         └► (nothing)  nobody knows

    Begin ─► Send … ─► Ending(commits=True)  ─► Ended(committed=True)
          │                                  └► (nothing): nobody knows
          └► (nothing), or Ending(commits=False): never committed
"""

import json
from typing import NamedTuple

from headrace.model.ids import TopicPartition


class Seen(NamedTuple):
    """A record, where a reader found it."""

    place: TopicPartition
    offset: int
    value: int


class Send(NamedTuple):
    """A value is on its way to a partition. Sends of one client to one partition are meant to keep their order."""

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
    """Records in the order in which one poll brought them. Readers read what is committed."""

    client: str
    records: tuple[Seen, ...]


class Assign(NamedTuple):
    """From here on the client reads these partitions from a place of its choice, and nothing may be left out."""

    client: str
    places: tuple[TopicPartition, ...]


class Subscribe(NamedTuple):
    """From here on a group decides what the client reads: it may skip what others read, and rewind."""

    client: str
    topics: tuple[str, ...]


class Begin(NamedTuple):
    """A transaction: what the client sends until it ends belongs to it."""

    client: str


class Ending(NamedTuple):
    """The client is about to ask for the end of its transaction."""

    client: str
    commits: bool


class Ended(NamedTuple):
    """The client was told how its transaction ended."""

    client: str
    committed: bool


class Crash(NamedTuple):
    """The client is gone: what it had not finished, nobody will."""

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
