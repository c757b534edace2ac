"""Two settings of a worker's memory that Spark's way of using workers asks for.

What is freed is kept: a worker allocates the same few megabytes for every batch of rows. By default glibc gives larger
pieces back to the kernel and gets them again zeroed, page by page, which took two thirds of the time of decoding:
145 ns a record against 430 (100 bytes each, 17,000 at a time). Other C libraries are left alone.

What is loaded is not looked through: PySpark collects garbage after every task, and went through 53,000 objects of
modules each time, 28 ms of CPU where reading three rows takes one. (Half of them are loaded by the first task only.)
"""

import ctypes
import gc
import sys

# glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 * 1024 * 1024  # far above what one task of ours uses; what a worker uses beyond is given back


def tune_malloc() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)


_modules_spared = 0


def freeze_modules() -> None:
    """In a worker of PySpark's daemon, at every task: a task may have loaded modules that the one before did without.

    Programs of users collect as they please.
    """
    global _modules_spared
    main = sys.modules.get("__main__")
    if len(sys.modules) == _modules_spared or getattr(getattr(main, "__spec__", None), "name", "") != "pyspark.daemon":
        return
    _modules_spared = len(sys.modules)
    gc.freeze()
