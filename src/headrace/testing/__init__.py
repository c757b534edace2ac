"""testing: a broker or a cluster for your tests in a line, a clock that stands still, a disk with faults to order."""

from headrace.testing.clock import SimClock
from headrace.testing.local_broker import LocalBroker
from headrace.testing.local_cluster import LocalCluster
from headrace.testing.sim_files import PowerLost, SimFiles

__all__ = ["LocalBroker", "LocalCluster", "PowerLost", "SimClock", "SimFiles"]
