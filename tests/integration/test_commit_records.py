"""What outlives a week without a driver, and what belongs to whom: commit records, claims, and the names of both."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

pytest.importorskip("pyarrow")

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import ClientConfig, Cluster, create_topic_if_missing
from headrace.client.sync.offsets import Committed, committed_offsets
from headrace.client.sync.transactions import (
    ProducerIdentity,
    add_group_offsets,
    describe,
    end_transaction,
    init_producer,
    open_transactions,
)
from headrace.process.runtime import SystemClock
from headrace.spark.connector import commit_records
from headrace.spark.connector.checkpoint import CheckpointMismatch, CommittedBatch
from headrace.spark.connector.exactly_once import PLACE, TOPIC, Decision, ExactlyOnceCommitter, task_id
from headrace.spark.pipeline.ownership import PREFIX, Instance, OwnedElsewhereError, claim, holder
from headrace.testing import LocalBroker
from tests.patience import until

PATIENCE_S = 30
WEEK_MS = 8 * 24 * 60 * 60 * 1000  # and a day: offsets.retention.minutes has the default
SETTINGS = {
    "offsets.retention.check.interval.ms": "50",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
}


@pytest.fixture
def cluster(kafka_broker: LocalBroker) -> Iterator[Cluster]:
    cluster = Cluster(ClientConfig(bootstrap=kafka_broker.bootstrap, patience_s=PATIENCE_S))
    create_topic_if_missing(cluster, TOPIC)
    yield cluster
    cluster.close()


@pytest.fixture
def query() -> str:
    return uuid4().hex


def opened(cluster: Cluster, transactional_id: str) -> ProducerIdentity:
    """A task that has written, and waits for its driver."""
    owner = init_producer(cluster, transactional_id, 60_000)
    add_group_offsets(cluster, owner, f"rows-{transactional_id}", {PLACE: Committed(1)})
    return owner


def decided(
    cluster: Cluster, query: str, number: int, ends: str = "", fence: ProducerIdentity | None = None
) -> Decision:
    transactions = (opened(cluster, task_id(query, "cafe0123", number, "0-0")),)
    decision = Decision(number, "cafe0123", transactions, ends)
    ExactlyOnceCommitter(cluster, query, fence).commit(decision)
    return decision


def test_claims_and_commits_outlive_offset_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        LocalBroker(memory=True, in_process=True, settings=SETTINGS) as broker,
        closing(Cluster(ClientConfig(bootstrap=broker.bootstrap, patience_s=PATIENCE_S))) as cluster,
    ):
        here, elsewhere = Instance("one", "here", "/one", 1, 1), Instance("two", "there", "/two", 2, 2)
        claimed = claim(cluster, "totals", here)
        decision = decided(cluster, "q", 7, '[{"t":{"0":70}}]', claimed.owner)
        today = SystemClock.wall_ms
        monkeypatch.setattr(SystemClock, "wall_ms", lambda self: today(self) + WEEK_MS)
        groups = (PREFIX + "totals", "headrace-spark-q")
        until(lambda: not any(committed_offsets(cluster, one, [PLACE], stable=True) for one in groups), "expiry", 60)

        ids = [owner.transactional_id or "" for owner in (claimed.owner, *decision.transactions)]
        until(lambda: not any(describe(cluster, one) for one in ids), "expiry of transactional ids", 60)

        assert holder(cluster, "totals") == here
        with pytest.raises(OwnedElsewhereError):
            claim(cluster, "totals", elsewhere)
        assert ExactlyOnceCommitter(cluster, "q").last(stable=True) == decision
        with pytest.raises(CheckpointMismatch):
            decided(cluster, "q", 6, '[{"t":{"0":66}}]')
        again = claim(cluster, "totals", here)
        # The batch is repeated: no broker knows its transactions any more, and it is complete all the same.
        ExactlyOnceCommitter(cluster, "q", again.owner).commit(decision._replace(transactions=()))
        assert ExactlyOnceCommitter(cluster, "q").last(stable=True) == decision
        decided(cluster, "q", 8, fence=again.owner)
        assert ExactlyOnceCommitter(cluster, "q").last_number() == 8


def test_batch_of_restored_checkpoint_is_refused(cluster: Cluster, query: str) -> None:
    decided(cluster, query, 0, '[{"t":{"0":100}}]')
    done = decided(cluster, query, 1, '[{"t":{"0":200}}]')
    done = done._replace(before=CommittedBatch(0, '[{"t":{"0":100}}]'))
    for number, ends in ((1, '[{"t":{"0":150}}]'), (0, '[{"t":{"0":100}}]'), (0, "")):
        with pytest.raises(CheckpointMismatch, match=r'has batch 1 of this query up to \[\{"t":\{"0":200\}\}\]'):
            decided(cluster, query, number, ends)
        assert open_transactions(cluster, f"headrace-spark-{query}-") == [], "the refused attempt is aborted"
    assert ExactlyOnceCommitter(cluster, query).last(stable=True) == done
    decided(cluster, query, 1, '[{"t":{"0":200}}]')  # the batch that it is, again
    decided(cluster, query, 1)  # by a driver that cannot read its checkpoint
    assert ExactlyOnceCommitter(cluster, query).last(stable=True) == done


def test_one_owner_commits_batches_from_many_processes(cluster: Cluster, query: str) -> None:
    """Spark commits each batch in a process of its own; the owner is that of the pipeline's start."""
    fence = init_producer(cluster, f"copy-{query}", 60_000)
    for number in range(4):
        with closing(Cluster(cluster.settings)) as process:
            decided(process, query, number, fence=fence)
    assert ExactlyOnceCommitter(cluster, query).last_number() == 3


def test_commit_record_behind_open_transaction_is_awaited(cluster: Cluster, query: str) -> None:
    decided(cluster, query, 0)
    other = init_producer(cluster, f"other-{query}", 60_000)
    commit_records.append(cluster, other, "query other", "undecided")
    decided(cluster, query, 1)
    settings = ClientConfig(bootstrap=cluster.settings.bootstrap, patience_s=0.1)
    with closing(Cluster(settings)) as impatient, pytest.raises(KafkaApiError, match="open transaction"):
        commit_records.newest(impatient, f"query {query}")
    end_transaction(cluster, other, commit=False)
    found = commit_records.newest(cluster, f"query {query}")
    assert found is not None
    assert json.loads(found)[0] == 1
    assert commit_records.newest(cluster, "query other") is None, "it was aborted"


@pytest.mark.parametrize("other", ["-2", "-2-cafe0123-0-0-0", ".1", "-"])
def test_sweep_leaves_transactions_of_other_queries(cluster: Cluster, query: str, other: str) -> None:
    own, foreign = task_id(query, "dead0000", 0, "0-0"), task_id(query + other, "dead0000", 0, "0-0")
    for name in (own, foreign):
        opened(cluster, name)
    ExactlyOnceCommitter(cluster, query).sweep(keep=())
    assert open_transactions(cluster, f"headrace-spark-{query}") == [foreign]


def test_run_with_hyphens_gives_unambiguous_task_ids(query: str) -> None:
    assert task_id(query, "0123abcd-4567", 3, "1-0") == f"headrace-spark-{query}-0123abcd-3-1-0"
    named = task_id(query, "my-job", 3, "1-0").removeprefix(f"headrace-spark-{query}-")
    assert named.count("-") == 3, "the parts of a task behind the query have no hyphen"


# What earlier versions wrote


def commit_as_before(cluster: Cluster, query: str, number: int, parts: list[str]) -> None:
    driver = init_producer(cluster, f"headrace-spark-{query}", 60_000)
    for at, part in enumerate(parts):
        group = f"headrace-spark-{query}.{at}" if at else f"headrace-spark-{query}"
        metadata = part if at else f"{len(parts)};{part}"
        add_group_offsets(cluster, driver, group, {PLACE: Committed(number + 1, metadata)})
    end_transaction(cluster, driver, commit=True)


@pytest.mark.parametrize("cuts", [1, 3])
def test_commit_of_earlier_version_is_continued(cluster: Cluster, query: str, cuts: int) -> None:
    owner = opened(cluster, task_id(query, "cafe0123", 5, "0-0"))
    text = json.dumps(["cafe0123", [owner]], separators=(",", ":"))
    size = -(-len(text) // cuts)
    commit_as_before(cluster, query, 5, [text[at : at + size] for at in range(0, len(text), size)])
    assert ExactlyOnceCommitter(cluster, query).last(stable=True) == Decision(5, "cafe0123", (owner,))
    assert ExactlyOnceCommitter(cluster, query).last_number() == 5
    if cuts > 1:
        assert ExactlyOnceCommitter(cluster, f"{query}.1").last(stable=True) is None, (
            "it is a part of the other query's commit"
        )
        decided(cluster, f"{query}.1", 0)
        with pytest.raises(Exception, match="not all of them still have it"):
            ExactlyOnceCommitter(cluster, query).last(stable=True)
        return
    decided(cluster, query, 6)
    assert ExactlyOnceCommitter(cluster, query).last_number() == 6


def test_claim_of_earlier_version_is_honored(cluster: Cluster, query: str) -> None:
    before = Instance("one", "here", "/one", 1, int(time.time() * 1000))
    owner = init_producer(cluster, PREFIX + query, 60_000)
    add_group_offsets(cluster, owner, PREFIX + query, {PLACE: Committed(before.since_ms, json.dumps(before))})
    end_transaction(cluster, owner, commit=True)
    assert holder(cluster, query) == before
    with pytest.raises(OwnedElsewhereError):
        claim(cluster, query, Instance("two", "there", "/two", 2, 2))
    claim(cluster, query, before._replace(process=3))
    assert holder(cluster, query) == before._replace(process=3)
