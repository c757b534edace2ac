"""Ids that were given out and that nobody has come back with yet."""

import pytest

from headrace.core.coordinator import CoordinatorTime, Decision
from headrace.core.group.classic.manager import ClassicGroups
from headrace.core.group.classic.rebalance import PENDING_MAX
from headrace.core.group.model import ClassicFact, GroupCoordinatorConfig, JoinRequest, Protocol

NOW = CoordinatorTime(0, 0)


def join(groups: ClassicGroups, new_id: str) -> Decision[ClassicFact]:
    request = JoinRequest(
        group_id="g",
        client_id="c",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=(Protocol("range", b""),),
    )
    decision = groups.join(request, new_id, 1, NOW)
    for fact in decision.facts:
        groups.apply(fact, 0)
    return decision


def test_a_group_holds_only_so_many_of_them_and_the_newest_is_always_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.core.group.classic.rebalance.PENDING_MAX", 100)
    assert PENDING_MAX > 100
    groups = ClassicGroups(GroupCoordinatorConfig())
    timers: dict[str, int | None] = {}
    for number in range(1_000):
        decision = join(groups, f"id-{number}")
        timers.update(dict(decision.timers))
        group = groups.get("g")
        assert group is not None
        assert f"id-{number}" in group.pending
        assert len(group.pending) <= 100
    running = [name for name, due in timers.items() if due is not None]
    assert len(running) == 100, "who is dropped leaves no timer behind"
