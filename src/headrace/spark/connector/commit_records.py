"""Commit records and claims by key, in a compacted topic: written in a transaction of their owner, the newest counts.

The offsets of a group expire a week after the group was last used (offsets.retention.minutes). What must outlive that,
which batch of a query is committed and to which state directory a pipeline belongs, is a record here. The group holds a
reference to the record for as long as the broker keeps it, so that the topic is not read for every batch.
"""

import re
import time
from contextlib import closing

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import Cluster, check, create_topic_if_missing
from headrace.client.sync.fetcher import FETCH_BYTES, FETCH_BYTES_MIN, OffsetOutOfRange, fetch_from
from headrace.client.sync.offsets import EARLIEST, LATEST, Committed, list_offsets
from headrace.client.sync.producer import produce_one
from headrace.client.sync.transactions import ProducerIdentity, add_partitions
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID, TopicPartition
from headrace.records.builder import NewRecord, build_batch
from headrace.records.record import iter_records
from headrace.records.transaction_filter import committed_batches

TOPIC = "headrace-spark-commit-records"
PARTITION = TopicPartition(TOPIC, 0)
# The segment that is written to is not compacted, and is read whole by who looks for a key: it stays small.
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(8 * 1024 * 1024), "segment.ms": str(24 * 60 * 60 * 1000)}
NO_OWNER = ProducerIdentity(None, NO_PRODUCER_ID, NO_EPOCH)
_REFERENCE = re.compile(r"@(\d+)")


class RecordMissing(HeadraceError):
    """A group refers to a commit record that is gone."""


def ensure_records(cluster: Cluster) -> None:
    create_topic_if_missing(cluster, TOPIC, CONFIGS)


def append(cluster: Cluster, owner: ProducerIdentity, key: str, value: str) -> str:
    """In the owner's transaction, which the caller ends. What a group's offset says to refer to the record."""
    add_partitions(cluster, owner, [PARTITION])
    batch = build_batch(
        [NewRecord(int(time.time() * 1000), key.encode(), value.encode())],
        producer_id=owner.producer_id,
        producer_epoch=owner.epoch,
        base_sequence=_next_sequence(cluster, owner),
        transactional=True,
    )
    return f"@{produce_one(cluster, owner, PARTITION, batch)}"


def append_fact(cluster: Cluster, key: str, value: str) -> None:
    """Outside of any transaction: a fact stays true whichever process writes it, and however often."""
    produce_one(
        cluster, NO_OWNER, PARTITION, build_batch([NewRecord(int(time.time() * 1000), key.encode(), value.encode())])
    )


def is_reference(metadata: str) -> bool:
    return _REFERENCE.fullmatch(metadata) is not None


def referred(cluster: Cluster, key: str, committed: Committed) -> str:
    """The record that the metadata of a group's offset refers to."""
    found = _REFERENCE.fullmatch(committed.metadata)
    assert found is not None, "the caller has looked"
    value = _record_at(cluster, key, int(found[1]))
    if value is None:
        value = newest(cluster, key)  # a newer one was committed since, and compaction has removed this one
    if value is None:
        raise RecordMissing(
            f"{PARTITION} has no record {key} at offset {found[1]}, which the last commit refers to. Restore the "
            "topic, or delete the group that refers to it and begin with a new checkpoint"
        )
    return value


def newest(cluster: Cluster, key: str) -> str | None:
    """The last committed record of the key; reads the topic from its beginning."""
    wanted = key.encode()
    if cluster.patiently(f"finding the topic {TOPIC}", lambda: cluster.topics([TOPIC]).get(TOPIC)) is None:
        return None
    first, end = (_edge(cluster, time) for time in (EARLIEST, LATEST))
    value: bytes | None = None
    deadline = time.monotonic() + cluster.settings.patience_s
    fetches = fetch_from(cluster, PARTITION, first, end, read_committed=True, bytes_max=FETCH_BYTES)
    with closing(fetches):
        for fetched in fetches:
            # An open transaction of another query may lie before a committed record; it lasts a minute at most.
            if not fetched.batches and time.monotonic() > deadline:
                raise KafkaApiError(
                    ErrorCode.UNSTABLE_OFFSET_COMMIT, f"{PARTITION} has an open transaction at {fetched.position}"
                )
            for batch, header in committed_batches(fetched.batches, fetched.aborted):
                for record in iter_records(batch, header):
                    value = record.value if record.key == wanted else value
    return value.decode() if value is not None else None


def _edge(cluster: Cluster, time: int) -> int:
    return cluster.patiently(
        f"requesting the offsets of {PARTITION}",
        lambda: list_offsets(cluster, {PARTITION: time}, read_committed=False)[PARTITION] or 0,
    )


def _record_at(cluster: Cluster, key: str, offset: int) -> str | None:
    fetches = fetch_from(cluster, PARTITION, offset, offset + 1, read_committed=False, bytes_max=FETCH_BYTES_MIN)
    try:
        with closing(fetches):
            fetched = next(fetches)
    except OffsetOutOfRange:
        return None
    except KafkaApiError as refusal:
        if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return None
    for batch, header in fetched.batches:
        for record in iter_records(batch, header):
            if record.offset == offset and record.key == key.encode() and record.value is not None:
                return record.value.decode()
    return None


def _next_sequence(cluster: Cluster, owner: ProducerIdentity) -> int:
    """The owner may have written from another process, which is gone: the leader knows how far it came."""
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    wanted = TopicRequest(name=TopicName(TOPIC), partition_indexes=(i32(0),))

    def attempt() -> int:
        connection = cluster.leader_connection(PARTITION)
        answer = connection.call(DescribeProducersRequest(topics=(wanted,)), DescribeProducersResponse)
        (row,) = answer.topics[0].partitions
        check(row.error_code, f"the producers of {PARTITION}")
        mine = (one for one in row.active_producers if one.producer_id == owner.producer_id)
        last = next((int(one.last_sequence) for one in mine if one.producer_epoch == owner.epoch), -1)
        return last + 1 if last >= 0 else 0

    return cluster.patiently(f"requesting the producers of {PARTITION}", attempt)
