"""Registrations, leader epochs after a crash, producer ids."""

from uuid import UUID

import pytest

from headrace.config.settings import Listener
from headrace.core.controller import cluster_control, replication_control
from headrace.core.controller.cluster_control import PRODUCER_IDS_PER_BLOCK, ProducerIdBlock
from headrace.core.controller.leader_election import BrokerLiveness, ElectionConfig
from headrace.core.controller.replica_placer import new_partitions
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision, PartitionRegistration
from headrace.model.errors import InvalidConfig, RequestError

ENDPOINT = Listener("PLAINTEXT", "localhost", 9092)


def register(image: MetadataImage, cluster_id: str | None = None, node_id: int = 1) -> None:
    decision = cluster_control.register(
        image,
        node_id=node_id,
        endpoints=[ENDPOINT],
        rack="r",
        configured_cluster_id=cluster_id,
        new_cluster_id="fresh",
    )
    image.apply(image.revision + 1, decision.writes)


def test_the_first_broker_gives_the_cluster_its_id_and_controls_it() -> None:
    image = MetadataImage()
    register(image)
    assert (image.cluster_id, image.controller) == ("fresh", 1)
    assert (image.brokers[1].endpoints, image.brokers[1].rack) == ((ENDPOINT,), "r")


def test_a_configured_cluster_id_is_taken_and_kept() -> None:
    image = MetadataImage()
    register(image, "mine")
    register(image)
    register(image, "mine")
    assert image.cluster_id == "mine"


def test_a_node_of_another_cluster_is_refused() -> None:
    image = MetadataImage()
    register(image, "mine")
    with pytest.raises(InvalidConfig, match="belongs to mine"):
        register(image, "yours")


def test_every_start_has_a_higher_broker_epoch() -> None:
    image = MetadataImage()
    register(image)
    first = image.brokers[1].epoch
    register(image)
    assert image.brokers[1].epoch > first


def handle_unclean_restart(names: list[str], image: MetadataImage) -> dict[str, Decision[None] | RequestError]:
    return replication_control.handle_unclean_restart(
        names, image, 1, BrokerLiveness({1}), lambda _: ElectionConfig(1), lambda _: False
    )


def test_after_a_crash_the_partitions_that_a_broker_leads_get_a_new_epoch() -> None:
    image = MetadataImage()
    states = new_partitions([(1, 2), (2, 1)] * 75, 3)
    writes = {
        records.topic_key("t"): records.encode_topic(UUID(int=1), {}),
        records.topic_key("other"): records.encode_topic(UUID(int=2), {}),
        **records.block_writes(UUID(int=1), states, range(150)),
        **records.block_writes(UUID(int=2), new_partitions([(2,)], 0), [0]),
    }
    image.apply(1, writes)
    assert replication_control.topics_held_by(image, 1) == ["t"]
    decision = handle_unclean_restart(["t"], image)["t"]
    assert isinstance(decision, Decision)
    image.apply(2, decision.writes)
    epochs = [(state.leader_epoch, state.partition_epoch) for state in image.topics["t"].partitions]
    assert epochs == [(4, 1), (3, 0)] * 75


def test_a_topic_deleted_meanwhile_needs_no_new_epoch() -> None:
    assert handle_unclean_restart(["gone"], MetadataImage()) == {"gone": Decision(None, {})}


def test_blocks_of_producer_ids_never_overlap() -> None:
    image = MetadataImage()
    blocks = []
    for revision in range(1, 4):
        decision = cluster_control.next_producer_ids(image)
        blocks.append(decision.row)
        image.apply(revision, decision.writes)
    assert blocks == [ProducerIdBlock(number * PRODUCER_IDS_PER_BLOCK, PRODUCER_IDS_PER_BLOCK) for number in range(3)]


def image_of(*partitions: tuple[int, ...], live: tuple[int, ...] = (1, 2, 3)) -> MetadataImage:
    """Three brokers, of which some are there, and a topic with these replicas."""
    image = MetadataImage()
    for node_id in (1, 2, 3):
        register(image, node_id=node_id)
    for node_id in {1, 2, 3} - {*live}:
        image.apply(image.revision + 1, {records.session_key(node_id): None})
    states = new_partitions(partitions, 0)
    writes: dict[str, bytes | None] = {records.topic_key("t"): records.encode_topic(UUID(int=1), {})}
    writes |= records.block_writes(UUID(int=1), states, range(len(states)))
    image.apply(image.revision + 1, writes)
    return image


def test_a_broker_that_is_gone_and_holds_nothing_is_forgotten() -> None:
    image = image_of((1, 2), live=(1, 2))
    image.apply(image.revision + 1, cluster_control.unregister(image, 3).writes)
    assert set(image.brokers) == {1, 2}


@pytest.mark.parametrize(
    ("node_id", "live", "reason"),
    [(3, (1, 2, 3), "runs; stop it"), (2, (1,), "holds replicas, of t"), (9, (1,), "no broker")],
)
def test_a_broker_that_is_there_or_holds_something_is_not_forgotten(
    node_id: int, live: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        cluster_control.unregister(image_of((1, 2), live=live), node_id)


def resigned(image: MetadataImage, node_id: int) -> MetadataImage:
    condition = replication_control.condition_of(image)
    (decision,) = replication_control.resign(
        {"t": [0]}, image, node_id, condition, lambda topic: ElectionConfig(1)
    ).values()
    assert isinstance(decision, Decision)
    image.apply(image.revision + 1, decision.writes)
    return image


def test_a_broker_whose_copy_failed_leaves_leading_to_others() -> None:
    (state,) = resigned(image_of((1, 2, 3)), 1).topics["t"].partitions
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2, 3), 1)


def test_a_follower_whose_copy_failed_leaves_the_isr() -> None:
    (state,) = resigned(image_of((1, 2, 3)), 3).topics["t"].partitions
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 2), 0)


def test_a_broker_whose_copy_failed_stays_where_nobody_else_has_everything() -> None:
    (state,) = resigned(image_of((1, 2), live=(1,)), 1).topics["t"].partitions
    assert (state.leader, state.isr) == (1, (1, 2)), "whoever repairs its disk loses nothing"


def test_partitions_are_out_of_place_where_the_first_replica_could_lead_and_does_not() -> None:
    image = image_of((1, 2), (2, 1))
    assert replication_control.imbalanced_partitions(image, replication_control.condition_of(image)) == {}
    resigned(image, 1)
    assert replication_control.imbalanced_partitions(image, replication_control.condition_of(image)) == {}, (
        "it is not in sync"
    )
    moved = [state._replace(isr=(1, 2)) for state in image.topics["t"].partitions]
    image.apply(image.revision + 1, dict(records.block_writes(UUID(int=1), moved, [0, 1])))
    assert replication_control.imbalanced_partitions(image, replication_control.condition_of(image)) == {"t": [0]}


def test_restarted_leader_is_not_replaced_by_peers_with_old_sessions() -> None:
    image, topic_id = MetadataImage(), UUID(int=1)
    state = PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 5, 7)
    image.apply(1, {records.topic_key("t"): records.encode_topic(topic_id, {})})
    image.apply(2, dict(records.block_writes(topic_id, [state], [0])))
    lingering = BrokerLiveness({2, 3})  # they are dead, and their sessions are not over yet
    outcome = replication_control.handle_unclean_restart(
        ["t"], image, 1, lingering, lambda _: ElectionConfig(1), lambda _: False
    )["t"]
    assert isinstance(outcome, Decision)
    (value,) = outcome.writes.values()
    assert value is not None
    assert records.decode_block(value) == [state._replace(leader_epoch=6, partition_epoch=8)]
