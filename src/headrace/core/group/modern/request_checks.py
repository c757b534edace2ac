"""Whether a heartbeat makes sense at all, before anybody looks at the group."""

from headrace.core.group.modern.errors import UnsupportedAssignor
from headrace.core.group.modern.regex import matcher
from headrace.core.group.modern.values import JOINING, LEAVING, LEAVING_FOR_A_WHILE, GroupRules, Heartbeat
from headrace.model.errors import RequestError

# Keys of the log count the bytes of a name in 15 bits, and a character takes up to four.
NAME_CHARS_MAX = 8_000
UNCHANGED = -1  # what a member says once it has said it before


def check_form(request: Heartbeat, rules: GroupRules) -> None:
    for name, value in (
        ("the group id", request.group_id),
        ("the member id", request.member_id),
        ("the instance id", request.instance_id),
        ("the rack id", request.rack_id),
    ):
        _refuse_if(value == "", f"{name} is empty")
        _refuse_if(
            value is not None and len(value) > NAME_CHARS_MAX, f"{name} has more than {NAME_CHARS_MAX} characters"
        )
    _refuse_if(request.epoch < LEAVING_FOR_A_WHILE, f"there is no member epoch {request.epoch}")
    _refuse_if(
        request.epoch == LEAVING_FOR_A_WHILE and request.instance_id is None,
        "only a static member leaves for a while, and this one names no instance id",
    )
    _refuse_if(request.rebalance_timeout_ms < UNCHANGED, f"a rebalance timeout of {request.rebalance_timeout_ms} ms")
    if request.epoch == JOINING:
        _check_joining(request)
    if request.assignor is not None and request.assignor not in rules.assignors:
        raise UnsupportedAssignor(f"there is no assignor {request.assignor!r}, only {', '.join(rules.assignors)}")
    if request.regex and request.epoch != LEAVING:
        matcher(request.regex)


def _check_joining(request: Heartbeat) -> None:
    _refuse_if(request.rebalance_timeout_ms == UNCHANGED, "a member that joins names its rebalance timeout")
    _refuse_if(request.owned is None or bool(request.owned), "a member that joins owns no partitions")
    _refuse_if(request.topics is None and not request.regex, "a member that joins names its topics or an expression")


def _refuse_if(wrong: bool, reason: str) -> None:
    if wrong:
        raise RequestError(reason)
