"""Lives of groups with members of both protocols that went wrong once, found by `test_mixed_model.py`."""

import pytest

from tests.unit.core.group.consumer.test_mixed_model import MixedGroupLife


@pytest.fixture
def life() -> MixedGroupLife:
    life = MixedGroupLife()
    life.begin(interval_ms=0)
    return life


def test_a_group_that_changed_back_is_shared_out_though_its_coordinator_changed(life):
    life.join(forgets=False, name="fixed")
    life.start(name="a", wish={"topics": ("t",)})
    life.say_goodbye(for_a_while=False, name="a")
    life.coordinator_changes()
    life.join(forgets=True, name="fixed")
    life.teardown()


def test_a_new_coordinator_gives_nobody_who_is_away_a_time_to_let_go(life):
    life.start(name="static", wish={"topics": ("t",)})
    life.join(forgets=False, name="fixed")
    life.let_nothing_go(name="a", seconds=1)
    life.say_goodbye(for_a_while=True, name="static")
    life.coordinator_changes()
    life.everything_that_waits_has_an_end()
    life.teardown()
