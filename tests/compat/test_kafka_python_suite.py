"""kafka-python's own integration suite passes as far as the checked-in list says, and the list only grows."""

import pytest

from headrace.testing import LocalBroker
from tests.compat import kafka_python_suite

# How many lines the list had when it was last extended. Raise it with the list; never lower it.
LISTED_AT_LEAST = 54

# As the suite configures its own brokers: replicas are assigned to broker 0, and sessions may be short.
SETTINGS = {
    "node.id": "0",
    "num.partitions": "2",
    "group.min.session.timeout.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}


def test_the_list_of_passing_tests_does_not_shrink():
    listed = kafka_python_suite.must_pass()
    assert len(set(listed)) >= LISTED_AT_LEAST


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_listed_test_of_kafka_pythons_suite_passes():
    listed = kafka_python_suite.must_pass()
    with LocalBroker(memory=False, settings=SETTINGS) as broker:
        outcomes = kafka_python_suite.run(broker.bootstrap, tests=listed)
    others = {name: outcomes.get(name, "was not run") for name in listed if outcomes.get(name) != "passed"}
    assert others == {}
