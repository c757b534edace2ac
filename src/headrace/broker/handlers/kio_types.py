"""Number types of kio's message classes, for the type checker only; at run time they are plain ints.

kio validates the range whenever it constructs one of its numbers, which would cost more than encoding the whole
message. Numbers out of range fail in the encoder anyway.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from headrace.model.errors import ErrorCode, HeadraceError

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode as WireError
    from kio.schema.types import BrokerId, GroupId, ProducerId, TopicName
    from kio.static.primitive import i8, i16, i32, i32Timedelta, i64, u16
else:

    def _as_it_is(value: Any) -> Any:
        return value

    BrokerId = GroupId = ProducerId = TopicName = i8 = i16 = i32 = i64 = u16 = _as_it_is

__all__ = [
    "NO_ERROR",
    "NO_THROTTLE",
    "BrokerId",
    "GroupId",
    "ProducerId",
    "TopicName",
    "error_of",
    "i8",
    "i16",
    "i32",
    "i64",
    "milliseconds",
    "u16",
    "wire_error",
]

_MILLISECOND = timedelta(milliseconds=1)
NO_THROTTLE = cast("i32Timedelta", timedelta(0))


def milliseconds(duration: timedelta) -> int:
    """Converts a duration of kio's messages to milliseconds."""
    return duration // _MILLISECOND


def wire_error(code: int) -> "WireError":
    """Types an error code as kio's error type; the encoder accepts any int."""
    return cast("WireError", code)


NO_ERROR = wire_error(ErrorCode.NONE)


def error_of(outcome: HeadraceError) -> tuple["WireError", str]:
    """Returns the error code and message of a failed row."""
    return wire_error(outcome.code), str(outcome)
