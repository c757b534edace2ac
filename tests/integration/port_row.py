"""Ports in a row, for `headrace cluster up`: nobody else gets them while a test needs them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from headrace.app.local_cluster.runner import ETCD_PORTS_ABOVE
from headrace.process.sockets import reserve_port


@contextmanager
def reserved_base(nodes: int) -> Iterator[int]:
    """A port after which there is one for each node, and one for each member of etcd. They stay ours, also unused."""
    while True:
        with ExitStack() as held:
            base: int = held.enter_context(reserve_port(0)).getsockname()[1]
            try:
                for node in range(1, nodes + 1):
                    for port in (base + node, base + ETCD_PORTS_ABOVE + node):
                        held.enter_context(reserve_port(port))
            except (OSError, OverflowError):
                continue
            yield base
            return
