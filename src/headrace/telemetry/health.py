"""Health checks of a node's components: each has a name, a status and a sentence.

`down` means that requests cannot be served. `degraded` means that they are served, and that an operator should act.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


_ORDER = (Status.OK, Status.DEGRADED, Status.DOWN)


class Check(NamedTuple):
    status: Status
    detail: str  # has the remedy if the status is not ok


Checks = dict[str, Check]


def worst(checks: Mapping[str, Check]) -> Status:
    return max((check.status for check in checks.values()), key=_ORDER.index, default=Status.OK)


def not_ready_reason(checks: Mapping[str, Check]) -> str | None:
    """Returns why requests cannot be served; None if they can be."""
    return next((f"{name}: {one.detail}" for name, one in checks.items() if one.status is Status.DOWN), None)


def to_document(checks: Mapping[str, Check]) -> dict[str, dict[str, str]]:
    return {name: {"status": str(check.status), "detail": check.detail} for name, check in checks.items()}


def from_document(document: Mapping[str, Mapping[str, str]]) -> Checks:
    return {name: Check(Status(row["status"]), row["detail"]) for name, row in document.items()}
