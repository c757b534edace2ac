"""Against how many brokers the client tests run, and which tests speak of one alone."""

import os

import pytest

NODES = int(os.environ.get("HEADRACE_TEST_NODES", "1"))
of_one_broker = pytest.mark.skipif(NODES > 1, reason="describes a cluster of one broker")
