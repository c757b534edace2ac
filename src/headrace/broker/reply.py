"""Answers that are not there yet: a place in a connection's queue."""

from typing import Protocol

from headrace.protocol.frames import Parts
from headrace.telemetry.figures import Histogram


class Answering(Protocol):
    """What a connection does for its replies."""

    def answered(self) -> None: ...

    def close(self, reason: str | None) -> None: ...


class Reply:
    """A place in the queue of answers, for a request that is answered later."""

    __slots__ = ("_connection", "began", "durations", "parts", "requests")

    def __init__(self, connection: Answering, durations: Histogram | None, began: float) -> None:
        """`durations` is told how long it took since `began`; None if that has been counted."""
        self._connection = connection
        self.durations, self.began = durations, began
        self.requests = 1  # that this answers; more, if they were handled as one
        self.parts: Parts | None = None

    def send(self, parts: Parts) -> None:
        """Answer. Waits its turn behind earlier requests of the connection; does nothing once it is closed."""
        self.parts = parts
        self._connection.answered()

    def abandon(self) -> None:
        """There is no answer to give: the connection cannot go on."""
        self._connection.close("A request failed")
