"""Cluster facts that live as long as the process: for memory mode and for tests."""

from headrace.metadata.embedded import EmbeddedStore
from headrace.metadata.ledger import Ledger
from headrace.metadata.store import Change
from headrace.model.clock import Clock


class MemoryStore(EmbeddedStore):
    def __init__(self, clock: Clock, last_lease: int = 0) -> None:
        super().__init__(clock, Ledger(last_lease=last_lease))

    async def _persist(self, change: Change, leased: bool) -> None:
        """Nothing to do: what is in memory is as durable as this store gets."""
