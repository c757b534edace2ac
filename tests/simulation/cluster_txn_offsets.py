"""Offsets that a producer commits with its transactions, for a group of its own: exactly-once, as Kafka calls it."""

from typing import TYPE_CHECKING, Any

from kio.schema.add_offsets_to_txn.v3.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v3.response import AddOffsetsToTxnResponse
from kio.schema.txn_offset_commit.v3 import request as old_request
from kio.schema.txn_offset_commit.v3.response import TxnOffsetCommitResponse
from kio.schema.txn_offset_commit.v5 import request as new_request
from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponse as NewTxnOffsetCommitResponse
from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i64

from headrace.client.aio import groups
from headrace.core.transaction.metadata import ProducerIdentity
from tests.simulation.cluster_calls import GROUP, SimCoordinators, check_code
from tests.simulation.cluster_clients import PATIENCE_S, TOPIC, Client

if TYPE_CHECKING:
    from tests.simulation.cluster_transactional import TransactionalClient

PARTITION = 0


def group_of(number: int) -> str:
    return f"of {number}"


class OffsetsInTransactions:
    def __init__(self, client: "TransactionalClient", *, is_new: bool) -> None:
        self._client = client
        self._coordinators = SimCoordinators(client, GROUP)
        self._is_new = is_new
        self.group_id = group_of(client.number)

    async def add(self, name: str, owner: ProducerIdentity) -> None:
        """Older clients tell the coordinator of the transaction first; for newer ones the commit does."""
        if not self._is_new:
            request = AddOffsetsToTxnRequest(
                transactional_id=TransactionalId(name),
                producer_id=ProducerId(owner.producer_id),
                producer_epoch=i16(owner.epoch),
                group_id=GroupId(self.group_id),
            )
            await self._client.call_coordinator(request, AddOffsetsToTxnResponse)

    async def commit(self, name: str, owner: ProducerIdentity, offset: int, patience_s: float) -> None:
        messages: Any = new_request if self._is_new else old_request
        response_type: Any = NewTxnOffsetCommitResponse if self._is_new else TxnOffsetCommitResponse
        row = messages.TxnOffsetCommitRequestPartition(
            partition_index=i32(PARTITION), committed_offset=i64(offset), committed_metadata=""
        )
        request = messages.TxnOffsetCommitRequest(
            transactional_id=TransactionalId(name),
            group_id=GroupId(self.group_id),
            producer_id=ProducerId(owner.producer_id),
            producer_epoch=i16(owner.epoch),
            topics=(messages.TxnOffsetCommitRequestTopic(name=TopicName(TOPIC), partitions=(row,)),),
        )

        async def attempt(node: int) -> None:
            wait_s = patience_s - PATIENCE_S
            answer = await self._coordinators.cluster.call_broker(node, request, response_type, wait_s)
            check_code(answer.topics[0].partitions[0].error_code)

        await self._coordinators.ask(self.group_id, attempt)


async def committed_offset(client: Client, group_id: str) -> int:
    """What the group has committed; -1 if nothing. Refused while a transaction that commits more is open."""
    coordinators: Any = SimCoordinators(client, GROUP)
    (found,) = await groups.committed(coordinators, group_id, {TOPIC: (PARTITION,)})
    return found.offset
