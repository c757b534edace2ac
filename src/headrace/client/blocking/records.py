"""The records of a topic that a reader of committed data sees, one after the other: for topics that are read whole."""

from collections.abc import Iterator, Mapping

from headrace.client.blocking.cluster import Cluster
from headrace.client.blocking.fetching import FETCH_BYTES, fetch_from
from headrace.client.blocking.offsets import EARLIEST, LATEST, list_offsets
from headrace.model.ids import TopicPartition
from headrace.records.committed import visible_batches
from headrace.records.record import Record, iter_records


def committed_records(cluster: Cluster, topic: str) -> Iterator[tuple[TopicPartition, Record]]:
    """From the first to the last that is decided as of now, partition by partition. Nothing if there is no topic."""
    found = cluster.patiently(f"finding the topic {topic}", lambda: cluster.topics([topic]).get(topic))
    partitions = [TopicPartition(topic, number) for number in sorted(found.leaders)] if found else []
    firsts, ends = _edges(cluster, partitions, EARLIEST), _edges(cluster, partitions, LATEST)
    for partition in partitions:
        fetches = fetch_from(
            cluster, partition, firsts[partition], ends[partition], read_committed=True, bytes_max=FETCH_BYTES
        )
        for fetched in fetches:
            for batch, header in visible_batches(fetched.batches, fetched.aborted):
                for record in iter_records(batch, header):
                    if fetched.position <= record.offset < ends[partition]:
                        yield partition, record


def _edges(cluster: Cluster, partitions: list[TopicPartition], time: int) -> Mapping[TopicPartition, int]:
    asked = dict.fromkeys(partitions, time)
    found = cluster.patiently("requesting offsets", lambda: list_offsets(cluster, asked, read_committed=True))
    return {partition: offset or 0 for partition, offset in found.items()}
