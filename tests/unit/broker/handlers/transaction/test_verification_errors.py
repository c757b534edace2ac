"""Answers of a transaction coordinator elsewhere belong to the Produce request that asked."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from headrace.broker.coordinator import add_partitions_manager as guard_module
from headrace.broker.coordinator.add_partitions_manager import AddPartitionsToTxnManager
from headrace.broker.coordinator.errors import NotCoordinator
from headrace.broker.server import Broker
from headrace.core.transaction.metadata import ProducerIdentity
from headrace.model.errors import ErrorCode, HeadraceError, NotEnoughReplicas
from headrace.model.ids import TopicPartition
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import NewRecord, build_batch
from tests.unit.broker.handlers.handler_kit import HandlerKit
from tests.unit.broker.handlers.transaction.test_transactions import TX, write

OTHER_BROKER = 2
REQUESTS = 1000
VERSIONS = [11, 12, 13]


def batch_of(producer_id: int) -> memoryview:
    rows = [NewRecord(1_000, None, b"v")]
    return memoryview(
        bytearray(build_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True))
    )


def request_of(producer_id: int) -> ProduceRequest:
    return ProduceRequest(TX, -1, 1_000, [("t", [(0, batch_of(producer_id))])])


@pytest.fixture
async def guard(kit: HandlerKit, monkeypatch: pytest.MonkeyPatch) -> AddPartitionsToTxnManager:
    async def asked(
        broker: Any, node_id: int, name: str, owner: Any, places: Iterable[TopicPartition], **_: Any
    ) -> Any:
        if owner.producer_id % 3 == 1:
            raise NotCoordinator("it has moved")
        return dict.fromkeys(places, ErrorCode.NONE if owner.producer_id % 3 else ErrorCode.INVALID_TXN_STATE)

    monkeypatch.setattr(kit.transactions, "elsewhere", lambda name: OTHER_BROKER)
    monkeypatch.setattr(guard_module, "add_partitions_at", asked)
    await kit.create("t")
    return AddPartitionsToTxnManager(cast(Broker, kit))


def kept(guard: AddPartitionsToTxnManager) -> int:
    return sum(len(value) for value in vars(guard).values() if isinstance(value, dict | list | set))


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_that_never_append_leave_nothing_behind(guard: AddPartitionsToTxnManager, version: int) -> None:
    """Nothing asks for the answer: the batch is corrupt, the leader has moved, or the connection is closed."""
    for producer_id in range(REQUESTS):
        request = request_of(producer_id)
        await guard.add(request, guard.unverified_partitions(request), version)
    assert kept(guard) == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_answer_is_valid_for_its_own_request_only(
    kit: HandlerKit, guard: AddPartitionsToTxnManager, version: int
) -> None:
    request, partition = request_of(2), kit.partition("t")
    answers = await guard.add(request, guard.unverified_partitions(request), version)
    guard.check(partition, batch_of(2), TX, version, answers)
    for others in ({}, await guard.add(request_of(5), guard.unverified_partitions(request_of(5)), version)):
        with pytest.raises(NotEnoughReplicas):
            guard.check(partition, batch_of(2), TX, version, others)


async def test_answer_is_void_after_the_producer_wrote_elsewhere(
    kit: HandlerKit, guard: AddPartitionsToTxnManager
) -> None:
    request, partition = request_of(2), kit.partition("t")
    answers = await guard.add(request, guard.unverified_partitions(request), 12)
    write(kit, (2, 0))
    kit.partition("t").log.producers.get(2).txn_first_offset = None  # type: ignore[union-attr]
    with pytest.raises(NotEnoughReplicas):
        guard.check(partition, batch_of(2), TX, 12, answers)


@pytest.mark.parametrize("producer_id", [0, 1])
async def test_rejection_elsewhere_rejects_the_batch(
    kit: HandlerKit, guard: AddPartitionsToTxnManager, producer_id: int
) -> None:
    request = request_of(producer_id)
    answers = await guard.add(request, guard.unverified_partitions(request), 12)
    assert set(answers) == {(ProducerIdentity(producer_id, 0), TopicPartition("t", 0))}
    with pytest.raises(HeadraceError):
        guard.check(kit.partition("t"), batch_of(producer_id), TX, 12, answers)
