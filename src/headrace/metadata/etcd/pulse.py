"""Whether the other side is still there: a question when it has been silent for long, and an end if none is answered.

Decides when to ask and when to give up; what is asked, and whether anybody waits for answers, it is told.
"""

import asyncio
from collections.abc import Callable


class Pulse:
    def __init__(
        self,
        *,
        ask_after_seconds: float,
        answer_seconds_max: float,
        is_wanted: Callable[[], bool],
        ask: Callable[[], None],
        give_up: Callable[[str], None],
    ) -> None:
        self._ask_after_seconds = ask_after_seconds
        self._answer_seconds_max = answer_seconds_max
        self._is_wanted = is_wanted
        self._ask = ask
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(ask_after_seconds, self._look)

    def heard(self) -> None:
        """Whatever it was: it is alive."""
        self._heard_at = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        remaining = self._heard_at + self._ask_after_seconds - self._loop.time()
        if remaining > 0:
            self._timer = self._loop.call_later(remaining, self._look)
        elif not self._is_wanted():
            self._timer = self._loop.call_later(self._ask_after_seconds, self._look)
        else:
            self._timer = self._loop.call_later(self._answer_seconds_max, self._judge, self._heard_at)
            self._ask()

    def _judge(self, heard_before: float) -> None:
        if self._heard_at == heard_before:
            self._give_up(f"no response to a ping for {self._answer_seconds_max:g} s")
        else:
            self._look()
