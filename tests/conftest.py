"""What holds for all tests."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is slow: no test may fail because of a deadline. Every run generates the same examples, so that it
# has the same verdict; HEADRACE_NEW_EXAMPLES=1 generates new ones.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=not os.environ.get("HEADRACE_NEW_EXAMPLES"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# Spark lives for seconds in a test: the second of the JVM's compilers costs more time than it saves, and its usual
# collector keeps threads busy for a heap that is never full. Also for what tests start in processes of their own.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A shell without job control has what it starts in the background ignore Ctrl-C, and all their children too; some tests
# press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests of minutes: begun last, one of them would keep one worker busy after the other has nothing left to do.
LONG = ("tests/torture/", "tests/docs/")


@pytest.hookimpl(trylast=True)  # behind whoever shuffles
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For two workers, which begin with half of the list each, and steal from the end of the other's half.

    One begins with the tests of tests/spark and runs them all, in one Spark session; the other with the long ones.
    """
    spark = [item for item in items if item.nodeid.startswith("tests/spark/")]
    long = [item for item in items if item.nodeid.startswith(LONG)]
    others = [item for item in items if not item.nodeid.startswith(("tests/spark/", *LONG))]
    first = max(len(items) // 2 - len(spark), 0)
    items[:] = [*spark, *others[:first], *long, *others[first:]]
