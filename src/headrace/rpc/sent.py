"""What a consume stream has sent and its client has not acknowledged. Pure.

Sending says nothing about the client: only a number that the client sends back turns into offsets to commit.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.client.consuming import Place
from headrace.rpc.failures import invalid

# A stream that is never acknowledged by numbers remembers so many messages; older ones are acknowledged together.
MESSAGES_REMEMBERED_MAX = 10_000

Offsets = dict[tuple[str, int], Place]


@dataclass(slots=True)
class _Message:
    number: int
    assignment: int
    offsets: Offsets


class Sent:
    def __init__(self) -> None:
        self._messages: deque[_Message] = deque()
        self._acknowledged = _Message(0, 0, {})
        self._last = 0

    def note(self, number: int, next_offsets: Sequence[Place], assignment: int) -> None:
        self._last = number
        self._messages.append(_Message(number, assignment, {(one.topic, one.partition): one for one in next_offsets}))
        if len(self._messages) > MESSAGES_REMEMBERED_MAX:
            self._messages[0] = _together(self._messages.popleft(), self._messages[0])

    def up_to(self, number: int) -> tuple[list[Place], int]:
        """Where partitions go on behind the message of this number, and the assignment in which they were read."""
        if not 0 < number <= self._last:
            raise invalid(f"number is {number}; the last records event of this stream has {self._last}")
        while self._messages and self._messages[0].number <= number:
            self._acknowledged = _together(self._acknowledged, self._messages.popleft())
        return list(self._acknowledged.offsets.values()), self._acknowledged.assignment


def _together(first: _Message, second: _Message) -> _Message:
    """Both, as the second. What was read in an earlier assignment may have been another member's meanwhile."""
    offsets = first.offsets if first.assignment == second.assignment else {}
    return _Message(second.number, second.assignment, offsets | second.offsets)
