"""testing: a broker or a cluster for your tests in a line, a clock that stands still, a disk with faults to order."""

from headrace.testing.local.broker import LocalBroker
from headrace.testing.local.cluster import LocalCluster
from headrace.testing.simulation.clock import SimClock
from headrace.testing.simulation.files import PowerLost, SimFiles

__all__ = ["LocalBroker", "LocalCluster", "PowerLost", "SimClock", "SimFiles"]
