"""Deferred responses: completed by a later event, without a task that waits.

For a handler whose response depends on a single event, such as the commit of a coordinator record. It passes a
`DeferredResponse` to the code that observes the event and returns it. With ten thousand commits per second, a task
and a future for each would be half the work.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Response = TypeVar("Response")


class DeferredResponse(Generic[Response]):
    __slots__ = ("_build", "_is_settled", "_reply", "_tell")

    def __init__(self, build: Callable[[Any], Response]) -> None:
        """`build` makes the response from the value that `settle` receives; it may raise the client's error."""
        self._build = build
        self._tell: Callable[[DeferredResponse[Response]], None] | None = None
        self._reply: object = None
        self._is_settled = False

    def settle(self, reply: object) -> None:
        self._reply, self._is_settled = reply, True
        if self._tell is not None:
            self._tell(self)

    def then(self, tell: Callable[["DeferredResponse[Response]"], None]) -> None:
        """Calls `tell` when this is settled: immediately if it already is."""
        if self._is_settled:
            tell(self)
        else:
            self._tell = tell

    @property
    def is_settled(self) -> bool:
        return self._is_settled

    def response(self) -> Response:
        assert self._is_settled, "there is no response before it is settled"
        return self._build(self._reply)
