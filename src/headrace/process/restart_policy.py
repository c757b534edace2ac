"""When a pipeline that ended is started again. Pure: exit codes and times in, a decision out."""

import errno
import os
from dataclasses import dataclass

# How a worker ends: done, or asked to stop; failed, so that trying again may help; makes no sense; another copy runs;
# failed because the disk of its state directory is full.
DONE, FAILED, REFUSED, TAKEN_OVER, DISK_FULL = 0, 1, 2, 3, 4
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = tuple(os.strerror(one) for one in _FULL)  # as the JVM says it, in a text

FIRST_PAUSE_S = 1.0
# A broker that is away, or a bad record without dead letters, is not mended faster by asking more often.
PAUSE_MAX_S = 60.0
# One that ran for so long was well: what ended it is news, and the pauses begin anew.
WELL_AFTER_S = 300.0


def failure_code(error: BaseException) -> int:
    """DISK_FULL or FAILED, by the error or what is behind it."""
    seen: BaseException | None = error
    while seen is not None:
        if (isinstance(seen, OSError) and seen.errno in _FULL) or any(text in str(seen) for text in _FULL_TEXTS):
            return DISK_FULL
        seen = seen.__cause__ or seen.__context__
    return FAILED


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    pause_s: float = FIRST_PAUSE_S

    def after(self, exit_code: int, ran_s: float) -> "tuple[float, RestartPolicy] | None":
        """How long to wait and what to remember; None if it is not to be started again."""
        if exit_code in (DONE, REFUSED, TAKEN_OVER):
            return None
        pause_s = FIRST_PAUSE_S if ran_s >= WELL_AFTER_S else self.pause_s
        return pause_s, RestartPolicy(min(pause_s * 2, PAUSE_MAX_S))
