"""In which order the brokers of one machine are stopped."""

import pytest

from headrace.app.local_cluster.runner import stopping_order


@pytest.mark.parametrize(
    ("brokers", "etcd_ids", "order"),
    [
        ([1, 2, 3], [], [[1], [2], [3]]),
        ([1, 2, 3], [1, 2, 3], [[1], [2, 3]]),
        ([1, 2, 3, 4], [1, 2, 3], [[1], [4], [2, 3]]),
        ([1, 2], [1, 2], [[1, 2]]),
        ([1], [1], [[1]]),
        ([], [], []),
    ],
)
def test_a_majority_of_etcd_goes_last_and_at_once(
    brokers: list[int], etcd_ids: list[int], order: list[list[int]]
) -> None:
    assert stopping_order(brokers, etcd_ids) == order
