"""kafka-python's own integration suite passes as far as the checked-in list says, and the list only grows."""

import pytest

from headrace.testing import LocalBroker
from tests.compat import kafka_python_suite

# How many lines the list had when it was last extended. Raise it with the list; never lower it.
LISTED_AT_LEAST = 45

# As the suite configures its own brokers: four partitions by default, and replicas assigned to broker 0.
SETTINGS = {"node.id": "0", "num.partitions": "4"}


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
