"""The memory for unfinished requests has one bound, and nobody waits for it in vain."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.network.memory_pool import MemoryPool


@dataclass(eq=False)
class Holder:
    resumed: int = 0
    dropped: int = 0
    on_resume: list["Holder"] = field(default_factory=list)

    def resume_reading(self) -> None:
        self.resumed += 1

    def drop_spare_buffer(self) -> None:
        self.dropped += 1


def test_room_is_given_until_there_is_none() -> None:
    budget = MemoryPool(100)
    one, other = Holder(), Holder()
    budget.charge(one, 50)
    budget.charge(other, 20)
    assert budget.take(one, 30)
    assert (budget.used, budget.is_short) == (100, True)
    assert not budget.take(other, 1)
    assert budget.used == 100


def test_whoever_waits_is_told_when_something_comes_back() -> None:
    budget = MemoryPool(100)
    one, other = Holder(), Holder()
    budget.charge(one, 90)
    budget.charge(other, 10)
    assert not budget.take(other, 1)
    assert budget.is_waited_for
    budget.give(one)
    assert (other.resumed, budget.used, budget.is_short, budget.is_waited_for) == (1, 10, False, False)
    assert budget.take(other, 90)


def test_whoever_leaves_waits_no_more() -> None:
    budget = MemoryPool(100)
    one, other = Holder(), Holder()
    budget.charge(one, 100)
    budget.charge(other, 1)
    assert not budget.take(other, 1)
    budget.give(other)
    budget.give(one)
    assert (other.resumed, budget.used) == (0, 0)


def test_spare_buffers_go_before_anybody_waits() -> None:
    budget = MemoryPool(100)
    idle, busy, other = Holder(), Holder(), Holder()
    budget.charge(idle, 60)
    budget.spare(idle)
    budget.charge(busy, 30)
    budget.charge(other, 10)
    assert budget.take(other, 50)
    assert (idle.dropped, busy.dropped, budget.used) == (1, 0, 90)


def test_a_buffer_that_is_in_use_again_is_not_spare() -> None:
    budget = MemoryPool(100)
    one, other = Holder(), Holder()
    budget.charge(one, 60)
    budget.spare(one)
    budget.in_use(one)
    budget.charge(other, 40)
    assert not budget.take(other, 1)
    assert one.dropped == 0


def test_nothing_is_kept_spare_while_others_wait() -> None:
    budget = MemoryPool(100)
    one, other = Holder(), Holder()
    budget.charge(one, 90)
    budget.charge(other, 10)
    assert not budget.take(other, 1)
    budget.spare(one)
    assert (one.dropped, other.resumed, budget.used) == (1, 1, 10)


def test_when_every_holder_waits_the_last_one_goes_on() -> None:
    budget = MemoryPool(100)
    holders = [Holder() for _ in range(4)]
    for holder in holders:
        budget.charge(holder, 25)
    assert [budget.take(holder, 10) for holder in holders] == [False, False, False, True]
    assert budget.used == 110


def test_a_holder_who_is_alone_goes_on() -> None:
    budget = MemoryPool(100)
    holder = Holder()
    budget.charge(holder, 60)
    assert budget.take(holder, 1_000), "there is nobody to wait for"


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["charge", "take", "give", "spare"])), max_size=60))
def test_what_is_used_is_what_was_handed_out(steps: list[tuple[int, str]]) -> None:
    budget = MemoryPool(100)
    holders = [Holder() for _ in range(6)]
    held: dict[int, int] = {}
    spare: set[int] = set()
    for number, step in steps:
        holder = holders[number]
        if number in spare:
            budget.in_use(holder)
            spare.discard(number)
            if holder.dropped:
                held.pop(number, None)
        holder.dropped = 0
        if step == "charge" or number not in held:
            budget.charge(holder, 10)
            held[number] = held.get(number, 0) + 10
        elif step == "take":
            if budget.take(holder, 30):
                held[number] += 30
        elif step == "give":
            budget.give(holder)
            held.pop(number)
        else:
            budget.spare(holder)
            spare.add(number)
        for other in list(spare):
            if holders[other].dropped:
                held.pop(other, None)
                spare.discard(other)
                holders[other].dropped = 0
        assert budget.used == sum(held.values())
    for number in list(held):
        budget.give(holders[number])
    assert budget.used == 0
