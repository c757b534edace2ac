"""Room ahead of logs that live for a moment only, so that the shortest life has all that can happen with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from headrace.storage.io import preallocation


@contextmanager
def small_rooms(room_bytes: int = 320, round_bytes_max: int = 240) -> Iterator[None]:
    """With every round, for a few batches: the segments of such lives hold four to ten."""
    with patch.multiple(
        preallocation,
        PREALLOCATION_UNIT=32,
        PREALLOCATED_BYTES=room_bytes,
        ROUND_BYTES_MAX=round_bytes_max,
        ROUNDS_MIN=1,
    ):
        yield
