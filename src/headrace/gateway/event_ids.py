"""Ids of events: positions, as a client sends them back when it connects again.

    jobs:0:101,57,0,mail:3:8        jobs-0 goes on at 101, jobs-1 at 57, jobs-2 at 0; mail-3 at 8

Pure. A topic's stream names every partition, since there is no other memory of them; a group's stream names those with
the latest events, and the group's committed offsets are the memory of the others.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from headrace.client.member import Place
from headrace.gateway.encoding import OFFSET_MAX, PARTITION_MAX

# A request's head has 32 KiB; a thousand partitions of a topic fit, whatever their offsets are.
EVENT_ID_BYTES_MAX = 24 * 1024
# Each event has an id, so this bounds what a group's stream sends beside the records, however many partitions it has.
GROUP_ID_BYTES_MAX = 2 * 1024
_DIGITS_MAX = len(str(OFFSET_MAX))


def parse_event_id(text: str) -> dict[Place, int]:
    """Where each partition goes on; ValueError if this is no event id."""
    if len(text) > EVENT_ID_BYTES_MAX:
        raise ValueError("too long")
    positions: dict[Place, int] = {}
    topic, partition = "", -1
    for item in filter(None, text.split(",")):
        if ":" in item:
            topic, first, offset = item.split(":")
            partition = _number(first, PARTITION_MAX)
        else:
            offset, partition = item, partition + 1
        if not topic or partition > PARTITION_MAX:
            raise ValueError(item)
        positions[topic, partition] = _number(offset, OFFSET_MAX)
    return positions


def _number(text: str, maximum: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= maximum):
        raise ValueError(text)
    return int(text)


def event_id(positions: Mapping[Place, int]) -> str:
    return ",".join(_items(positions))


def _items(positions: Mapping[Place, int]) -> Iterator[str]:
    before: Place = ("", -1)
    for place in sorted(positions):
        topic, partition = place
        follows = before == (topic, partition - 1)
        yield str(positions[place]) if follows else f"{topic}:{partition}:{positions[place]}"
        before = place


class GroupPositions:
    """What a group's stream has sent on its connection, and how much of it an id can say."""

    def __init__(self) -> None:
        self._sent: OrderedDict[Place, int] = OrderedDict()  # the partition of the latest event last

    def get(self, place: Place) -> int:
        """Behind the last event of this partition; -1 if there was none."""
        return self._sent.get(place, -1)

    def moved(self, place: Place, offset: int) -> str:
        """The id of an event behind which this partition goes on at `offset`."""
        self._sent[place] = offset
        self._sent.move_to_end(place)
        return event_id(dict(self._latest()))

    def _latest(self) -> Iterator[tuple[Place, int]]:
        left = GROUP_ID_BYTES_MAX
        for place, offset in reversed(self._sent.items()):
            left -= len(place[0]) + len(str(place[1])) + len(str(offset)) + len("::,")
            if left < 0:
                return
            yield place, offset


class TopicPositions:
    """Where a topic's stream goes on in each of its partitions, from the first to the last."""

    def __init__(self, topic: str, offsets: Sequence[int]) -> None:
        self._topic = topic
        self._texts = [str(offset) for offset in offsets]

    def __len__(self) -> int:
        return len(self._texts)

    def moved(self, place: Place, offset: int) -> str:
        self._texts[place[1]] = str(offset)
        return self.id()

    def add(self, offsets: Sequence[int]) -> None:
        self._texts += [str(offset) for offset in offsets]

    def id(self) -> str:
        return f"{self._topic}:0:{','.join(self._texts)}"
