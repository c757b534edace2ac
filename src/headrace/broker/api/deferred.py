"""An answer that comes later, without a task that waits for it.

A handler whose answer depends on one thing only (that a log has committed what was decided) gives that thing a
`Later` to settle and returns it. A task and a future for each of ten thousand commits a second would be half the work.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Response = TypeVar("Response")


class DeferredResponse(Generic[Response]):
    __slots__ = ("_build", "_is_settled", "_reply", "_tell")

    def __init__(self, build: Callable[[Any], Response]) -> None:
        """`build` makes the response of what this is settled with; it may raise what the client is to be told."""
        self._build = build
        self._tell: Callable[[DeferredResponse[Response]], None] | None = None
        self._reply: object = None
        self._is_settled = False

    def settle(self, reply: object) -> None:
        self._reply, self._is_settled = reply, True
        if self._tell is not None:
            self._tell(self)

    def then(self, tell: Callable[["DeferredResponse[Response]"], None]) -> None:
        """Have `tell` called once this is settled: now, if it is already."""
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
