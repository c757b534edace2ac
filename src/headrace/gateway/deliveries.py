"""What the client of a consumer has received, as far as it has acknowledged it, and what it is sent again.

    poll ──► delivery 1 ──► poll (or poll?delivery=1, or commit) ──► acknowledged
                 └── the connection broke, or poll?delivery=0 ──► delivered again, as delivery 2

Only what is acknowledged, or was sent in the last response without a sign of its loss, is covered by a commit.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.member import Member, Place, place_of
from headrace.gateway.problems import Problem

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass(slots=True)
class Delivery:
    """The records of one response. `unread` is set when its connection shows that it was not received."""

    number: int
    assignment: int
    messages: "Sequence[Message]"
    unread: asyncio.Event
    sent: bool = False

    @property
    def received(self) -> bool:
        """For all that the gateway knows."""
        return self.sent and not self.unread.is_set()


class Deliveries:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._number = self._acknowledged_number = 0  # of the last delivery, and of the last acknowledged one
        self._last: Delivery | None = None
        self._offsets: dict[Place, int] = {}  # behind the acknowledged records
        self._assignment = member.assignment

    @property
    def number(self) -> int:
        """What the client names when it has received the response that is made now."""
        return self._acknowledged_number if self._last is None else self._last.number

    def next_poll(self, number: int | None) -> None:
        """Acknowledges the last delivery, or puts its records back if the client did not receive it.

        `number` is the last delivery that the client has received, if it says so.
        """
        self._check(number)
        if self._last is None:
            return
        received = self._last.received if number is None else number == self._last.number
        if received:
            self._acknowledge(self._last)
        elif self._last.assignment == self._member.assignment:
            self._member.put_back(self._last.messages)
        self._last = None

    def deliver(self, messages: "Sequence[Message]", unread: asyncio.Event) -> Delivery | None:
        """A delivery of these records; none if there is nothing to acknowledge."""
        if not messages:
            return None
        self._number += 1
        self._last = Delivery(self._number, self._member.assignment, messages, unread)
        return self._last

    def offsets(self, number: int | None) -> dict[Place, int]:
        """What a commit covers: up to the delivery of this number, or everything that was received."""
        self._check(number)
        last = self._last
        if last is not None and (last.received if number is None else number == last.number):
            self._acknowledge(last)
            self._last = None
        return self._current()

    def _acknowledge(self, delivery: Delivery) -> None:
        self._acknowledged_number = delivery.number
        offsets = self._current()
        if delivery.assignment == self._assignment:
            offsets |= {place_of(message): (message.offset() or 0) + 1 for message in delivery.messages}

    def _current(self) -> dict[Place, int]:
        """The offsets, without those of partitions that were taken away since."""
        if self._assignment != self._member.assignment:
            self._assignment, self._offsets = self._member.assignment, {}
        return self._offsets

    def _check(self, number: int | None) -> None:
        if number is not None and number not in (self._acknowledged_number, self._number):
            raise Problem(
                409,
                f"delivery {number} is not the last one, {self._number}, and not the last acknowledged one, "
                f"{self._acknowledged_number}; name the `delivery` of the last response that was received",
            )
