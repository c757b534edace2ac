"""What a consume stream remembers of the messages that it has sent."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.api.grpc import consume
from headrace.api.grpc.consume import Sent
from headrace.client.aio.threaded_consumer import PartitionOffset


def test_message_of_an_earlier_assignment_is_not_acknowledged_with_later_ones() -> None:
    messages = Sent()
    messages.note(1, [PartitionOffset("t", 0, 10), PartitionOffset("t", 1, 3)], assignment=1)
    messages.note(2, [PartitionOffset("t", 0, 4)], assignment=3)
    assert messages.up_to(1) == ([PartitionOffset("t", 0, 10), PartitionOffset("t", 1, 3)], 1)
    assert messages.up_to(2) == ([PartitionOffset("t", 0, 4)], 3)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(1, 40)), st.integers(1, 8))
def test_number_acknowledges_nothing_behind_its_message(partitions: list[int], numbers: list[int], most: int) -> None:
    """However little is remembered: less may be acknowledged, never more, and all in the end."""
    kept, consume.MESSAGES_REMEMBERED_MAX = consume.MESSAGES_REMEMBERED_MAX, most
    try:
        messages = Sent()
        behind: list[dict[int, int]] = [{}]
        for number, partition in enumerate(partitions, 1):
            behind.append(behind[-1] | {partition: number})
            messages.note(number, [PartitionOffset("t", partition, number)], assignment=1)
        for number in (one for one in sorted(numbers) if one <= len(partitions)):
            got = {one.partition: one.offset for one in messages.up_to(number)[0]}
            assert all(at <= behind[number].get(partition, 0) for partition, at in got.items())
        if partitions:
            last = {one.partition: one.offset for one in messages.up_to(len(partitions))[0]}
            assert last == behind[-1]
    finally:
        consume.MESSAGES_REMEMBERED_MAX = kept
