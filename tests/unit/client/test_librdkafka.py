"""Bootstrap addresses as people write them."""

import pytest

from headrace.client.librdkafka import BrokerUnreachable, bootstrap_addresses, check_reachable
from headrace.model.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("localhost", [("localhost", 9092)]),
        ("a:1, b:2 ,c", [("a", 1), ("b", 2), ("c", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_addresses_are_read(text, addresses):
    assert bootstrap_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ":9092", "a:b:1", "::1", "a:1,,b:2", "a:99999"])
def test_other_addresses_are_refused(text):
    with pytest.raises(InvalidConfig):
        bootstrap_addresses(text)


def test_nobody_there_names_every_address_that_was_tried():
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1 .*, 127\.0\.0\.1:2 "):
        check_reachable("127.0.0.1:1,127.0.0.1:2", 1.0)
