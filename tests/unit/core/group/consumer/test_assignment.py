from headrace.core.group.consumer.assignment import reconciled
from headrace.core.group.consumer.model import CurrentAssignment, MemberState
from tests.unit.core.group.consumer.consumer_kit import parts

EVERYTHING_FREE = lambda topic, index: True  # noqa: E731
NOTHING_FREE = lambda topic, index: False  # noqa: E731


def test_a_newcomer_gets_what_is_free_and_waits_for_the_rest() -> None:
    held = reconciled(CurrentAssignment(), parts(t={0, 1}), 3, {}, lambda topic, index: index == 0)
    assert held == CurrentAssignment(3, 0, MemberState.UNRELEASED, parts(t={0}))


def test_what_waits_comes_when_it_is_released_within_the_same_epoch() -> None:
    waiting = CurrentAssignment(3, 2, MemberState.UNRELEASED, parts(t={0}))
    assert reconciled(waiting, parts(t={0, 1}), 3, None, EVERYTHING_FREE) == CurrentAssignment(
        3, 2, assigned=parts(t={0, 1})
    )


def test_a_member_stays_in_its_epoch_until_it_has_given_up_what_it_must() -> None:
    held = CurrentAssignment(3, 2, assigned=parts(t={0, 1}))
    asked = reconciled(held, parts(t={0}), 4, None, EVERYTHING_FREE)
    assert asked == CurrentAssignment(3, 2, MemberState.UNREVOKED, parts(t={0}), parts(t={1}))
    assert reconciled(asked, parts(t={0}), 4, parts(t={0, 1}), EVERYTHING_FREE) == asked
    assert reconciled(asked, parts(t={0}), 4, None, EVERYTHING_FREE) == asked
    assert reconciled(asked, parts(t={0}), 4, parts(t={0}), EVERYTHING_FREE) == CurrentAssignment(
        4, 3, assigned=parts(t={0})
    )


def test_nothing_new_is_given_while_something_old_is_still_held() -> None:
    held = CurrentAssignment(3, 2, assigned=parts(t={1}))
    asked = reconciled(held, parts(t={0}), 4, None, EVERYTHING_FREE)
    assert asked.assigned == {}
    assert asked.revoking == parts(t={1})


def test_a_stable_member_at_the_targets_epoch_is_left_alone() -> None:
    held = CurrentAssignment(3, 2, assigned=parts(t={1}))
    assert reconciled(held, parts(t={1}), 3, None, NOTHING_FREE) is held


def test_a_member_that_joins_again_owns_nothing_so_there_is_nothing_to_wait_for() -> None:
    held = CurrentAssignment(assigned=parts(t={1}))
    assert reconciled(held, parts(t={0}), 4, {}, EVERYTHING_FREE) == CurrentAssignment(4, 0, assigned=parts(t={0}))
