"""A producer with transactions, as Kafka's clients are: it speaks the older or the newer dialect (KIP-890).

Each of its transactions goes to some partitions and is then committed, aborted or left alone: its producer has died,
and comes back under the same name, which ends the transaction, or under another, which leaves it to its timeout.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kio.schema.add_partitions_to_txn.v3.response import AddPartitionsToTxnResponse
from kio.schema.end_txn.v3.request import EndTxnRequest
from kio.schema.end_txn.v3.response import EndTxnResponse
from kio.schema.end_txn.v5.request import EndTxnRequest as NewEndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse as NewEndTxnResponse
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i32Timedelta

from headrace.client.aio.broker_connection import ConnectionLost
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError
from headrace.core.topic import OFFSETS_TOPIC
from headrace.core.transaction.metadata import ProducerIdentity
from headrace.records.builder import NewRecord, build_batch
from tests.simulation.cluster_calls import TRANSACTION, SimCoordinators, check_code
from tests.simulation.cluster_clients import PATIENCE_S, TOPIC, Client, Until, produce_frame, produce_row
from tests.simulation.cluster_transaction_ledger import Outcome, Transaction, TransactionLedger
from tests.simulation.cluster_txn_offsets import OffsetsInTransactions

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

Result = TypeVar("Result")

OLD_PRODUCE, NEW_PRODUCE = 9, 12  # with the newer one, the Produce itself adds its partition to the transaction
TIMEOUTS_MS = (1000, 2000, 5000)
TRIES_MAX = 30
DEEDS = ("commit", "commit", "commit", "abort", "die")


class TransactionalClient(Client):
    def __init__(self, world: "ClusterWorld", number: int, ledger: TransactionLedger) -> None:
        super().__init__(world, number)
        self._ledger = ledger
        self._coordinators = SimCoordinators(self, TRANSACTION)
        self._is_new = self.random.random() < 0.5
        self._offsets = OffsetsInTransactions(self, is_new=self._is_new)
        self._name = f"x{number}"
        self._sequences: dict[int, int] = {}

    async def run(self, until: Until) -> None:
        while not until():
            await self.pause(0.3)
            owner = await self._begin()
            while owner is not None and not until():
                await self.pause(0.3)
                owner = await self._transact(owner)

    async def _begin(self) -> ProducerIdentity | None:
        """A new life of this producer: what the one before has left open is aborted."""
        self._sequences = {}
        request = InitProducerIdRequest(
            transactional_id=TransactionalId(self._name),
            transaction_timeout=_milliseconds(self.random.choice(TIMEOUTS_MS)),
        )
        try:
            answer = await self._patiently(lambda: self.call_coordinator(request, InitProducerIdResponse))
        except (KafkaApiError, UnknownOutcomeError):
            return None
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    async def _transact(self, owner: ProducerIdentity) -> ProducerIdentity | None:
        """One transaction; returns whom the next one is by, None if that is to be asked."""
        transaction = self._ledger.begin()
        deed = self.random.choice(DEEDS)
        places = range(self.world.partition_count)
        try:
            for index in self.random.sample(places, self.random.randrange(1, len(places) + 1)):
                await self._write(owner, index, transaction)
            if OFFSETS_TOPIC in self.world.internal_topics and not await self._commit_offset(owner, transaction):
                deed = "abort"
            if deed != "die":
                return await self._end(owner, transaction, commit=deed == "commit")
        except (KafkaApiError, UnknownOutcomeError) as error:
            self.world.note("gave up", self._name, transaction.number, str(error))
            return None
        if self.random.random() < 0.3:
            self._name += "'"
        return None

    async def _write(self, owner: ProducerIdentity, index: int, transaction: Transaction) -> None:
        values = [self.world.new_value() for _ in range(self.random.randrange(1, 3))]
        self._ledger.writes(transaction, values)
        if not self._is_new:
            await self._patiently(lambda: self._add(owner, index))
        sequence = self._sequences.get(index, 0)
        batch = build_batch(
            [NewRecord(self.world.wall_ms(), None, value.encode()) for value in values],
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        frame = produce_frame(index, batch, NEW_PRODUCE if self._is_new else OLD_PRODUCE, self._name)

        async def attempt() -> None:
            leader = self.leader_of(index)
            if leader is None:
                raise ConnectionLost("nobody leads")
            row = produce_row(await self.ask(leader, frame))
            check_code(row.error)
            self.world.acknowledged(index, row.base_offset, values, leader)

        await self._patiently(attempt)
        self._sequences[index] = sequence + len(values)

    async def _commit_offset(self, owner: ProducerIdentity, transaction: Transaction) -> bool:
        """An offset that is to count with the transaction; False if it is not known to be written."""
        offset = self._ledger.commits_offset(transaction, self._offsets.group_id)
        # Who gives up early may end the transaction while what it has asked for is still on its way.
        patience_s, tries = self.random.choice([(0.1, 1), (PATIENCE_S, TRIES_MAX)])
        try:
            await self._patiently(lambda: self._offsets.add(self._name, owner))
            await self._patiently(lambda: self._offsets.commit(self._name, owner, offset, patience_s), tries)
        except UnknownOutcomeError:
            return False
        return True

    async def _add(self, owner: ProducerIdentity, index: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TransactionalId(self._name),
            v3_and_below_producer_id=ProducerId(owner.producer_id),
            v3_and_below_producer_epoch=i16(owner.epoch),
            v3_and_below_topics=(AddPartitionsToTxnTopic(name=TopicName(TOPIC), partitions=(i32(index),)),),
        )

        async def attempt(node: int) -> None:
            answer = await self._coordinators.cluster.call_broker(node, request, AddPartitionsToTxnResponse)
            (topic,) = answer.results_by_topic_v3_and_below
            check_code(topic.results_by_partition[0].partition_error_code)

        await self._coordinators.ask(self._name, attempt)

    async def _end(self, owner: ProducerIdentity, transaction: Transaction, *, commit: bool) -> ProducerIdentity:
        request_type: Any = NewEndTxnRequest if self._is_new else EndTxnRequest
        response_type: Any = NewEndTxnResponse if self._is_new else EndTxnResponse
        request = request_type(
            transactional_id=TransactionalId(self._name),
            producer_id=ProducerId(owner.producer_id),
            producer_epoch=i16(owner.epoch),
            committed=commit,
        )
        if commit:
            transaction.outcome = Outcome.UNKNOWN
        answer = await self._patiently(lambda: self.call_coordinator(request, response_type))
        transaction.outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
        self.world.note("ended", self._name, transaction.number, transaction.outcome.value)
        if not self._is_new:
            return owner
        self._sequences = {}
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    async def call_coordinator(self, request: Any, response_type: type[Any]) -> Any:
        async def attempt(node: int) -> Any:
            answer = await self._coordinators.cluster.call_broker(node, request, response_type)
            check_code(answer.error_code)
            return answer

        return await self._coordinators.ask(self._name, attempt)

    async def _patiently(self, attempt: Callable[[], Awaitable[Result]], tries_max: int = TRIES_MAX) -> Result:
        """Again and again while that may help; raises the refusal that is for good, or Unanswered."""
        for _ in range(min(self.random.choice([2, 10, TRIES_MAX]), tries_max)):
            try:
                return await attempt()
            except ConnectionLost:
                pass
            except KafkaApiError as refused:
                if not refused.passes:
                    raise
            await self.pause(0.3)
        raise UnknownOutcomeError("no answer after several tries")


def _milliseconds(count: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=count))
