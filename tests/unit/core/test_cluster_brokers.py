"""Registrations, leader epochs after a crash, producer ids."""

from uuid import UUID

import pytest

from headrace.core.cluster import brokers, elections, facts
from headrace.core.cluster.assignments import new_partitions
from headrace.core.cluster.brokers import PRODUCER_IDS_PER_BLOCK, ProducerIdBlock
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.succession import Condition, Rules
from headrace.core.cluster.values import Decision
from headrace.model.errors import InvalidConfig, RequestError
from headrace.model.settings import Listener

ENDPOINT = Listener("PLAINTEXT", "localhost", 9092)


def register(image: ClusterImage, cluster_id: str | None = None, node_id: int = 1) -> None:
    decision = brokers.register(
        image,
        node_id=node_id,
        endpoints=[ENDPOINT],
        rack="r",
        configured_cluster_id=cluster_id,
        new_cluster_id="fresh",
    )
    image.apply(image.revision + 1, decision.writes)


def test_the_first_broker_gives_the_cluster_its_id_and_controls_it() -> None:
    image = ClusterImage()
    register(image)
    assert (image.cluster_id, image.controller) == ("fresh", 1)
    assert (image.brokers[1].endpoints, image.brokers[1].rack) == ((ENDPOINT,), "r")


def test_a_configured_cluster_id_is_taken_and_kept() -> None:
    image = ClusterImage()
    register(image, "mine")
    register(image)
    register(image, "mine")
    assert image.cluster_id == "mine"


def test_a_node_of_another_cluster_is_refused() -> None:
    image = ClusterImage()
    register(image, "mine")
    with pytest.raises(InvalidConfig, match="belongs to mine"):
        register(image, "yours")


def test_every_start_has_a_higher_broker_epoch() -> None:
    image = ClusterImage()
    register(image)
    first = image.brokers[1].epoch
    register(image)
    assert image.brokers[1].epoch > first


def come_back(names: list[str], image: ClusterImage) -> dict[str, Decision[None] | RequestError]:
    return elections.come_back(names, image, 1, Condition({1}), lambda _: Rules(1), lambda _: False)


def test_after_a_crash_the_partitions_that_a_broker_leads_get_a_new_epoch() -> None:
    image = ClusterImage()
    states = new_partitions([(1, 2), (2, 1)] * 75, 3)
    writes = {
        facts.topic_key("t"): facts.encode_topic(UUID(int=1), {}),
        facts.topic_key("other"): facts.encode_topic(UUID(int=2), {}),
        **facts.block_writes(UUID(int=1), states, range(150)),
        **facts.block_writes(UUID(int=2), new_partitions([(2,)], 0), [0]),
    }
    image.apply(1, writes)
    assert elections.topics_held_by(image, 1) == ["t"]
    decision = come_back(["t"], image)["t"]
    assert isinstance(decision, Decision)
    image.apply(2, decision.writes)
    epochs = [(state.leader_epoch, state.partition_epoch) for state in image.topics["t"].partitions]
    assert epochs == [(4, 1), (3, 0)] * 75


def test_a_topic_deleted_meanwhile_needs_no_new_epoch() -> None:
    assert come_back(["gone"], ClusterImage()) == {"gone": Decision(None, {})}


def test_blocks_of_producer_ids_never_overlap() -> None:
    image = ClusterImage()
    blocks = []
    for revision in range(1, 4):
        decision = brokers.next_producer_ids(image)
        blocks.append(decision.row)
        image.apply(revision, decision.writes)
    assert blocks == [ProducerIdBlock(number * PRODUCER_IDS_PER_BLOCK, PRODUCER_IDS_PER_BLOCK) for number in range(3)]
