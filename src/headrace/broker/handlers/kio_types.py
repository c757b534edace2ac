"""The number types of kio's message classes, for the type checker only: at run time a number is a number.

kio checks a range whenever one of its numbers is made, which would cost more than writing the whole message;
whatever is out of range fails in the writer anyway.
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
    """kio reads durations as what they mean; we count."""
    return duration // _MILLISECOND


def wire_error(code: int) -> "WireError":
    """A code where kio's classes want one; the writer takes any whole number."""
    return cast("WireError", code)


NO_ERROR = wire_error(ErrorCode.NONE)


def error_of(outcome: HeadraceError) -> tuple["WireError", str]:
    """Code and message of a row that failed."""
    return wire_error(outcome.code), str(outcome)
