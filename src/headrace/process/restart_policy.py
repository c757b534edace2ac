"""Restart policy of pipelines that ended. Pure: exit codes and times in, a decision out."""

import errno
import os
from dataclasses import dataclass

# Exit codes of a worker: done, or stopped on request; failed, so that a restart may help; invalid configuration;
# another instance runs; failed because the disk of its state directory is full.
DONE, FAILED, REFUSED, TAKEN_OVER, DISK_FULL = 0, 1, 2, 3, 4
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = tuple(os.strerror(one) for one in _FULL)  # how these errors appear in the JVM's messages

FIRST_PAUSE_S = 1.0
# More frequent restarts do not help against an unavailable broker, or a bad record without a dead-letter topic.
PAUSE_MAX_S = 60.0
# A worker that ran for this long was healthy: pauses start again with the shortest.
WELL_AFTER_S = 300.0


def failure_code(error: BaseException) -> int:
    """Returns DISK_FULL or FAILED, by the error or its causes."""
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
        """Returns the pause before the restart and the next policy; None if the worker is not to be restarted."""
        if exit_code in (DONE, REFUSED, TAKEN_OVER):
            return None
        pause_s = FIRST_PAUSE_S if ran_s >= WELL_AFTER_S else self.pause_s
        return pause_s, RestartPolicy(min(pause_s * 2, PAUSE_MAX_S))
