"""How long the turns of a thread are, as the kernel says."""

import ctypes
import os
import re
import struct

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr
_RUNTIME = 5
_CALL_NUMBERS = {"x86_64": 315, "aarch64": 275}  # of sched_getattr
_SINCE = (6, 12)


def kernel_gives_turns() -> bool:
    """Whether this kernel gives an ordinary thread the turns that it asks for. Others take the wish and do nothing."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    assert found is not None
    return (int(found[1]), int(found[2])) >= _SINCE


def turns_of(thread: int) -> int:
    """In nanoseconds."""
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_CALL_NUMBERS[os.uname().machine], thread, buffer, _ATTRIBUTES.size, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    turns: int = _ATTRIBUTES.unpack(buffer.raw)[_RUNTIME]
    return turns
