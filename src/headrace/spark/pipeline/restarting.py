"""When a pipeline that ended is started again. Pure: exit codes and times in, a decision out."""

from dataclasses import dataclass

# How a worker ends: done, or asked to stop; failed, so that trying again may help; makes no sense; another copy runs.
DONE, FAILED, REFUSED, TAKEN_OVER = 0, 1, 2, 3

FIRST_PAUSE_S = 1.0
# A broker that is away, or a bad record without dead letters, is not mended faster by asking more often.
PAUSE_MAX_S = 60.0
# One that ran for so long was well: what ended it is news, and the pauses begin anew.
WELL_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class Restarts:
    pause_s: float = FIRST_PAUSE_S

    def after(self, exit_code: int, ran_s: float) -> "tuple[float, Restarts] | None":
        """How long to wait and what to remember; None if it is not to be started again."""
        if exit_code in (DONE, REFUSED, TAKEN_OVER):
            return None
        pause_s = FIRST_PAUSE_S if ran_s >= WELL_AFTER_S else self.pause_s
        return pause_s, Restarts(min(pause_s * 2, PAUSE_MAX_S))
