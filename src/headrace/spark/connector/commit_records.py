"""Commit records and ownership claims by key, in a compacted topic. Each is written in a transaction of its owner; the
newest record of a key applies.

Committed offsets expire a week after the group was last used (offsets.retention.minutes). State that must outlive
that is a record here: the committed batch of a query, and the state directory of a pipeline. While the committed
offset of the group exists, its metadata refers to the record, so that the topic is not read for every batch.
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
# The active segment is not compacted, and looking up a key reads it whole, so it is kept small.
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(8 * 1024 * 1024), "segment.ms": str(24 * 60 * 60 * 1000)}
NO_OWNER = ProducerIdentity(None, NO_PRODUCER_ID, NO_EPOCH)
_REFERENCE = re.compile(r"@(\d+)")


class RecordMissing(HeadraceError):
    """The committed offset of a group refers to a commit record that no longer exists."""


def ensure_records(cluster: Cluster) -> None:
    create_topic_if_missing(cluster, TOPIC, CONFIGS)


def append(cluster: Cluster, owner: ProducerIdentity, key: str, value: str) -> str:
    """Appends a record in the owner's transaction, which the caller ends. Returns the reference to the record, for the
    metadata of a committed offset.
    """
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
    """Appends a record without a transaction. For values that every writer may append, any number of times."""
    produce_one(
        cluster, NO_OWNER, PARTITION, build_batch([NewRecord(int(time.time() * 1000), key.encode(), value.encode())])
    )


def is_reference(metadata: str) -> bool:
    return _REFERENCE.fullmatch(metadata) is not None


def referred(cluster: Cluster, key: str, committed: Committed) -> str:
    """Returns the record that the metadata of a committed offset refers to. RecordMissing if it no longer exists."""
    found = _REFERENCE.fullmatch(committed.metadata)
    assert found is not None, "the caller has looked"
    value = _record_at(cluster, key, int(found[1]))
    if value is None:
        value = newest(cluster, key)  # compaction has removed it after a newer one was committed
    if value is None:
        raise RecordMissing(
            f"{PARTITION} has no record {key} at offset {found[1]}, which the last commit refers to. Restore the "
            "topic, or delete the group that refers to it and begin with a new checkpoint"
        )
    return value


def newest(cluster: Cluster, key: str) -> str | None:
    """Returns the last committed record of the key. Reads the whole topic."""
    wanted = key.encode()
    if cluster.patiently(f"finding the topic {TOPIC}", lambda: cluster.topics([TOPIC]).get(TOPIC)) is None:
        return None
    first, end = (_edge(cluster, time) for time in (EARLIEST, LATEST))
    value: bytes | None = None
    deadline = time.monotonic() + cluster.settings.patience_s
    fetches = fetch_from(cluster, PARTITION, first, end, read_committed=True, bytes_max=FETCH_BYTES)
    with closing(fetches):
        for fetched in fetches:
            # An open transaction of another query may precede a committed record; it lasts a minute at most.
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
    """Returns the owner's next sequence number from the partition leader, because another process may have written with
    this identity.
    """
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
