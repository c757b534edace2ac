"""A producer's identity and its transactions, as raw requests: one process may open what another one ends.

Librdkafka keeps the producer id and epoch to itself; whoever holds them can end the transaction, and that is what a
Spark driver does with the transactions of its tasks. The requests are of the versions before KIP-890's second part:
there a transaction's end keeps the epoch, and a repeated end is answered like the first.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from headrace.client.blocking.cluster import GROUP, TRANSACTION, Cluster, check
from headrace.client.blocking.offsets import Committed, by_topic
from headrace.client.transactions import Described, TransactionRefused, describe_transaction, list_transactions
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition

ONGOING = "Ongoing"
COMMITTED = ("PrepareCommit", "CompleteCommit")


class Owner(NamedTuple):
    """Who writes: without a transactional id an idempotent producer, with one the owner of its transaction."""

    transactional_id: str | None
    producer_id: int
    epoch: int


def init_producer(cluster: Cluster, transactional_id: str | None, timeout_ms: int) -> Owner:
    """A new owner. Of a transactional id it is the only one: whoever had it is fenced, what he had open is aborted."""
    from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
    from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
    from kio.schema.types import TransactionalId
    from kio.static.primitive import i32Timedelta

    request = InitProducerIdRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
    )

    def attempt() -> Owner:
        if transactional_id is None:
            answer = cluster.any_connection().call(request, InitProducerIdResponse)
        else:
            answer = cluster.ask_coordinator(TRANSACTION, transactional_id, request, InitProducerIdResponse)
        check(answer.error_code, f"a producer id for {transactional_id or 'an idempotent producer'}")
        return Owner(transactional_id, int(answer.producer_id), int(answer.producer_epoch))

    return cluster.patiently("starting a producer", attempt)


def add_partitions(cluster: Cluster, owner: Owner, partitions: Iterable[TopicPartition]) -> None:
    """The transaction is about to write there; the first call opens it."""
    from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
    from kio.schema.add_partitions_to_txn.v3.response import AddPartitionsToTxnResponse
    from kio.schema.types import ProducerId, TopicName, TransactionalId
    from kio.static.primitive import i16, i32

    assert owner.transactional_id is not None
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TransactionalId(owner.transactional_id),
        v3_and_below_producer_id=ProducerId(owner.producer_id),
        v3_and_below_producer_epoch=i16(owner.epoch),
        v3_and_below_topics=tuple(
            AddPartitionsToTxnTopic(name=TopicName(name), partitions=tuple(i32(one.partition) for one in ones))
            for name, ones in by_topic(partitions).items()
        ),
    )
    name = owner.transactional_id

    def attempt() -> None:
        answer = cluster.ask_coordinator(TRANSACTION, name, request, AddPartitionsToTxnResponse)
        for topic in answer.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                check(row.partition_error_code, f"adding {topic.name}-{row.partition_index} to {name}")

    cluster.patiently("adding partitions to a transaction", attempt)


def add_group_offsets(cluster: Cluster, owner: Owner, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
    """Offsets of a group that are committed together with the transaction."""
    from kio.schema.add_offsets_to_txn.v3.request import AddOffsetsToTxnRequest
    from kio.schema.add_offsets_to_txn.v3.response import AddOffsetsToTxnResponse
    from kio.schema.txn_offset_commit.v3.request import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
        TxnOffsetCommitRequestTopic,
    )
    from kio.schema.txn_offset_commit.v3.response import TxnOffsetCommitResponse
    from kio.schema.types import GroupId, ProducerId, TopicName, TransactionalId
    from kio.static.primitive import i16, i32, i64

    assert owner.transactional_id is not None
    name = owner.transactional_id
    adding = AddOffsetsToTxnRequest(
        transactional_id=TransactionalId(name),
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
        group_id=GroupId(group),
    )
    topics = tuple(
        TxnOffsetCommitRequestTopic(
            name=TopicName(topic),
            partitions=tuple(
                TxnOffsetCommitRequestPartition(
                    partition_index=i32(one.partition),
                    committed_offset=i64(offsets[one].offset),
                    committed_metadata=offsets[one].metadata,
                )
                for one in ones
            ),
        )
        for topic, ones in by_topic(offsets).items()
    )
    committing = TxnOffsetCommitRequest(
        transactional_id=TransactionalId(name),
        group_id=GroupId(group),
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
        topics=topics,
    )

    def attempt() -> None:
        answer = cluster.ask_coordinator(TRANSACTION, name, adding, AddOffsetsToTxnResponse)
        check(answer.error_code, f"adding the group {group} to {name}")
        written = cluster.ask_coordinator(GROUP, group, committing, TxnOffsetCommitResponse)
        for topic in written.topics:
            for row in topic.partitions:
                check(row.error_code, f"offsets of the group {group} in {name}")

    cluster.patiently("adding offsets to a transaction", attempt)


def end_transaction(cluster: Cluster, owner: Owner, *, commit: bool) -> None:
    """Safe to repeat: an end that has happened already, in the same way, is a success."""
    from kio.schema.end_txn.v3.request import EndTxnRequest
    from kio.schema.end_txn.v3.response import EndTxnResponse
    from kio.schema.types import ProducerId, TransactionalId
    from kio.static.primitive import i16

    assert owner.transactional_id is not None
    name = owner.transactional_id
    request = EndTxnRequest(
        transactional_id=TransactionalId(name),
        producer_id=ProducerId(owner.producer_id),
        producer_epoch=i16(owner.epoch),
        committed=commit,
    )

    def attempt() -> None:
        answer = cluster.ask_coordinator(TRANSACTION, name, request, EndTxnResponse)
        check(answer.error_code, f"{'committing' if commit else 'aborting'} {name}")

    cluster.patiently("ending a transaction", attempt)


def describe(cluster: Cluster, transactional_id: str) -> Described | None:
    """What the coordinator knows of the id; None if nothing."""

    def attempt() -> Described | None:
        try:
            return describe_transaction(cluster.coordinator_connection(TRANSACTION, transactional_id), transactional_id)
        except TransactionRefused as refusal:
            if refusal.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            check(refusal.code, f"describing {transactional_id}")
            raise

    return cluster.patiently("describing a transaction", attempt)


def open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    """Transactional ids with this prefix that have a transaction open, at whichever coordinator."""

    def attempt() -> list[str]:
        found: list[str] = []
        for address in cluster.addresses():
            listed = list_transactions(cluster.connection(address), [ONGOING])
            found += [one.transactional_id for one in listed if one.transactional_id.startswith(prefix)]
        return found

    return cluster.patiently("listing transactions", attempt)
