"""Transactions in a simulated cluster: producers that commit, abort or vanish, and a reader that must see whole ones.

Checked all along: nothing is seen of a transaction whose commit nobody has asked for, and nothing twice. In the end:
every transaction has ended, also those that were left to their timeout; a committed one is seen whole, an aborted one
not at all, one whose producer was never told all or nothing; a reader that came by earlier has seen the same; and the
offsets that were committed with transactions are those of the last one that is seen.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.client.aio import fetch
from headrace.client.aio.broker_connection import ConnectionLost
from headrace.client.core.errors import KafkaApiError
from headrace.core.topic import TRANSACTIONS_TOPIC
from headrace.core.transaction.metadata import AT_REST
from headrace.model.errors import HeadraceError
from tests.simulation.cluster_calls import SimCluster
from tests.simulation.cluster_clients import TOPIC, Client, Until
from tests.simulation.cluster_promises import TransactionOpen, TransactionTorn
from tests.simulation.cluster_transaction_ledger import TransactionLedger
from tests.simulation.cluster_transactional import TransactionalClient
from tests.simulation.cluster_txn_offsets import committed_offset

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

FETCH_BYTES = 1 << 20
WAIT_MS = 100


class CommittedReader(Client):
    """Reads with read_committed from the beginning on; remembers all it has seen."""

    def __init__(self, world: "ClusterWorld", number: int, ledger: TransactionLedger) -> None:
        super().__init__(world, number)
        self._ledger = ledger
        self._cluster = SimCluster(self)
        self.positions = dict.fromkeys(range(world.partition_count), 0)
        self.seen: dict[int, dict[int, str]] = {index: {} for index in self.positions}

    async def run(self, until: Until) -> None:
        while not until():
            await self.pause(0.3)
            await self.poll(self.random.randrange(len(self.positions)))

    async def poll(self, index: int) -> None:
        position = self.positions[index]
        try:
            fetched = await fetch.fetch(
                self._cluster,  # type: ignore[arg-type]
                TOPIC,
                index,
                position,
                bytes_max=FETCH_BYTES,
                wait_ms=WAIT_MS,
            )
        except (ConnectionLost, KafkaApiError):
            return
        known = self.seen[index]
        for record in fetch.readable_records(fetched, position):
            value = (record.value or b"").decode()
            if value in known.values():
                raise TransactionTorn(f"{value!r} is seen a second time in {TOPIC}-{index}, at offset {record.offset}")
            self._ledger.seen(value)
            self.world.read(index, record.offset, value)
            known[record.offset] = value
        self.positions[index] = fetch.next_offset(fetched, position)


class Transactions:
    """The part of a life that has to do with transactions."""

    topic: str | None = TRANSACTIONS_TOPIC

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._ledger = TransactionLedger()
        self._reader = CommittedReader(world, 10, self._ledger)
        producers = [TransactionalClient(world, number, self._ledger) for number in (11, 12)]
        self.clients: list[Client] = [self._reader, *producers]

    async def prepare(self) -> None:
        node = self._world.nodes[0]
        assert node.broker is not None
        await node.run(node.broker.transactions.leader_of("x"))

    async def check(self) -> None:
        await self._world.until(self._are_at_rest, "every transaction ends", TransactionOpen)
        afterwards = CommittedReader(self._world, 13, self._ledger)
        for index in afterwards.positions:
            await self._world.within(self._read_all(afterwards, index), f"{TOPIC}-{index} can be read to its end")
            position = self._reader.positions[index]
            expected = {offset: value for offset, value in afterwards.seen[index].items() if offset < position}
            if self._reader.seen[index] != expected:
                raise TransactionTorn(f"{TOPIC}-{index}: {self._reader.seen[index]} was seen, {expected} is in the end")
        self._check_visible(afterwards.seen)
        for group, offset in self._ledger.offsets(_values(afterwards.seen)).items():
            await self._world.within(self._check_offset(afterwards, group, offset), f"the offset of {group} is decided")

    async def _read_all(self, reader: CommittedReader, index: int) -> None:
        while reader.positions[index] < self._world.end_of(index):
            await reader.poll(index)

    def _check_visible(self, seen: Mapping[int, Mapping[int, str]]) -> None:
        self._ledger.check(_values(seen))
        for index, ledger in enumerate(self._world.ledgers):
            for offset, value in ledger.acked.items():
                if not self._ledger.is_of_transaction(value) and seen[index].get(offset) != value:
                    raise TransactionTorn(f"{value!r} was acknowledged outside of transactions, and is not seen")

    async def _check_offset(self, asker: Client, group: str, expected: int) -> None:
        """An offset counts if, and only if, the transaction does that it was committed with."""
        while True:
            try:
                offset = await committed_offset(asker, group)
            except (ConnectionLost, KafkaApiError):
                await asker.pause(0.1)
                continue
            if offset != expected:
                raise TransactionTorn(f"group {group!r} is at {offset}, its last committed transaction is {expected}")
            return

    def _are_at_rest(self) -> bool:
        """Every coordinator has ended all of its transactions, and every partition knows."""
        try:
            return all(self._is_at_rest(index) for index in range(self._world.partition_count))
        except HeadraceError:
            return False  # a coordinator is still reading

    def _is_at_rest(self, index: int) -> bool:
        coordinator = self._world.leader_node(TRANSACTIONS_TOPIC, 0)
        leader = self._world.leader_node(TOPIC, index)
        if coordinator is None or leader is None or coordinator.broker is None or leader.broker is None:
            return False
        machine = coordinator.broker.transactions.runtime.shard(0).machine
        partition = leader.broker.partitions.held(TOPIC, index)
        return (
            all(one.state in AT_REST for one in machine.transactions.values())
            and partition is not None
            and partition.last_stable_offset == partition.high_watermark == partition.log_end_offset
        )


def _values(seen: Mapping[int, Mapping[int, str]]) -> set[str]:
    return {value for values in seen.values() for value in values.values()}
