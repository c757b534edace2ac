"""Which topics a query speaks of."""

import pytest

from headrace.model.errors import InvalidConfig
from headrace.spark.sql.views import mentioned

NAMES = ["orders", "orders-eu", "a.b", "other"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("select * from orders", ["orders"]),
        ("select * from orders o join `orders-eu` using (id)", ["orders", "orders-eu"]),
        ("select `a.b`.offset from `a.b`", ["a.b"]),
        ("select orders.id from orders", ["orders"]),
        ("select preorders from reorders", []),
        ("select 1", []),
    ],
)
def test_names_of_topics_are_found_in_queries(query: str, found: list[str]) -> None:
    assert mentioned(query, NAMES) == found


def test_names_that_sql_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="one name in SQL"):
        mentioned("select * from Orders join orders", ["orders", "Orders"])
    assert mentioned("select * from Orders", ["orders", "Orders"]) == ["Orders"]
