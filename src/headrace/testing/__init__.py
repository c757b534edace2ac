"""headrace.testing: real brokers and clusters for tests, simulated time and disks, and a history checker."""

from headrace.testing.local.broker import LocalBroker
from headrace.testing.local.cluster import LocalCluster
from headrace.testing.simulation.clock import SimClock
from headrace.testing.simulation.files import PowerLost, SimFiles

__all__ = ["LocalBroker", "LocalCluster", "PowerLost", "SimClock", "SimFiles"]
