"""One copy of a pipeline decides, wherever its copies run: what a broker says to each of them. No JVM is needed."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.offsets import Committed
from headrace.client.sync.transactions import add_group_offsets, init_producer
from headrace.spark.connector.exactly_once import PLACE
from headrace.spark.pipeline.ownership import PREFIX, Fenced, Instance, OwnedElsewhereError, check_owner, claim, holder


@pytest.fixture
def cluster(kafka_broker) -> Iterator[Cluster]:
    cluster = Cluster(ClientConfig(bootstrap=kafka_broker.bootstrap, patience_s=30))
    yield cluster
    cluster.close()


@pytest.fixture
def name() -> str:
    return f"p-{uuid4().hex[:8]}"


def copy(folder: str, process: int = 1) -> Instance:
    return Instance(folder, "here", f"/{folder}", process, 1_700_000_000_000 + process)


def test_the_newest_copy_of_a_folder_fences_the_others(cluster, name):
    old = claim(cluster, name, copy("one", 1))
    check_owner(cluster, old.owner)
    assert old.lost_to() is None
    new = claim(cluster, name, copy("one", 2))
    with pytest.raises(Fenced, match=f"^{name}: another instance"):
        check_owner(cluster, old.owner)
    assert old.lost_to() == copy("one", 2)
    with pytest.raises(KafkaApiError):
        add_group_offsets(cluster, old.owner, "anything", {PLACE: Committed(1)})
    check_owner(cluster, new.owner)
    assert holder(cluster, name) == copy("one", 2)


def test_a_copy_with_another_checkpoint_is_refused_and_fences_nobody(cluster, name):
    owning = claim(cluster, name, copy("one"))
    with pytest.raises(OwnedElsewhereError, match=r"the state directory /one at here.*--take-over"):
        claim(cluster, name, copy("two"))
    check_owner(cluster, owning.owner)
    other = claim(cluster, name, copy("two"), take_over=True)
    assert owning.lost_to() == copy("two")
    with pytest.raises(OwnedElsewhereError):
        claim(cluster, name, copy("one"))
    check_owner(cluster, other.owner)


def test_of_two_that_start_at_the_same_moment_one_goes_on(cluster, name, monkeypatch):
    """The second takes the id over between the first one's look and its note."""
    from headrace.spark.pipeline import ownership

    def overtaken(*arguments):
        owner = init_producer(*arguments)
        monkeypatch.setattr(ownership, "init_producer", init_producer)
        claim(cluster, name, copy("two"))
        return owner

    monkeypatch.setattr(ownership, "init_producer", overtaken)
    with pytest.raises(OwnedElsewhereError):
        claim(cluster, name, copy("one"))
    monkeypatch.setattr(ownership, "init_producer", overtaken)
    with pytest.raises(Fenced, match="the same moment"):
        claim(cluster, name, copy("two", 3))
    assert holder(cluster, name) == copy("two")


def test_an_id_that_the_broker_took_back_is_nobody_elses(cluster, name):
    """As when a decision takes too long: the pipeline is not told that another copy runs, and claims it again."""
    owning = claim(cluster, name, copy("one"))
    init_producer(cluster, PREFIX + name, 60_000)
    with pytest.raises(Fenced):
        check_owner(cluster, owning.owner)
    assert owning.lost_to() is None
    claim(cluster, name, copy("one", 2))
