"""A backfill that goes back further than its topic: what was deleted there comes from the archive, each record once."""

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place

from headrace.archive.settings import TABLE, change, read_settings, topic_view
from headrace.archive.stream_history import ArchiveOffsetResolver, read_piece
from headrace.archive.worker import ArchiveWorker
from headrace.client.reader.offsets import OffsetRange
from headrace.client.reader.read_options import Subscription
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.model.ids import TopicPartition
from headrace.pipeline.definition import Pipeline
from headrace.pipeline.parser import parse_pipeline
from headrace.pipeline.state import PipelineState
from headrace.spark.pipeline.runner import Running
from headrace.spark.pipeline.sinks import RunContext as SinkPlace
from headrace.spark.pipeline.start_offsets import BACKFILL_SUFFIX, fix_backfill_range, unfinished_backfill
from tests.spark.kit import SparkKit

COPY = """\
pipeline: copy
sources:
  numbers:
    topic: {topic}
    starting: latest
    format: text
    options: {{maxOffsetsPerTrigger: "{batch}"}}
sql: select concat(_partition, ':', _offset, '=', value) as value from numbers
sink: {{topic: "{topic}.out", format: raw}}
trigger: available-now
"""


def copy(topic: str, *, batch: int = 1000) -> Pipeline:
    return parse_pipeline(COPY.format(topic=topic, batch=batch))


def run(kit: SparkKit, pipeline: Pipeline, state: PipelineState, *, only_backfill: bool = False) -> None:
    place = SinkPlace(kit.bootstrap, str(state.checkpoint))
    Running(pipeline, state, place, lambda: None).run(kit.session, only_backfill=only_backfill)


def archived(kit: SparkKit, topic: str, folder: Path, kind: str = "delta") -> None:
    """All that is in the topic now."""
    cluster = Cluster(ClientConfig(bootstrap=kit.bootstrap))
    change(cluster, topic, {TABLE: f"{kind}:{folder / 'table'}"})
    settings = read_settings(cluster, topic_view(cluster, topic))
    assert settings is not None
    ArchiveWorker(cluster, grace_s=0).catch_up(settings)
    cluster.close()


def delete_before(kit: SparkKit, topic: str, *firsts: int) -> None:
    places = [Place(topic, partition, first) for partition, first in enumerate(firsts)]
    for future in kit.admin.delete_records(places).values():
        future.result(30)


def copied(kit: SparkKit, topic: str) -> list[str]:
    return sorted(one.decode() for one in kit.values(f"{topic}.out", kafka__isolation__level="read_committed"))


def records(*, partitions: int, below: int) -> list[str]:
    return sorted(f"{partition}:{n}={n}" for partition in range(partitions) for n in range(below))


def produce(kit: SparkKit, topic: str, numbers: range, partitions: int) -> None:
    for partition in range(partitions):
        kit.numbers(topic, numbers, partition=partition)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_the_topic_has_lost_comes_from_its_archive(kit: SparkKit, tmp_path: Path, kind: str) -> None:
    topic = kit.topic(3)
    kit.topic(name=f"{topic}.out")
    produce(kit, topic, range(40), 3)
    archived(kit, topic, tmp_path, kind)
    produce(kit, topic, range(40, 60), 3)
    delete_before(kit, topic, 17, 40, 0)  # within the archive, at its very end, and nothing at all
    pipeline = copy(topic, batch=50)  # cuts batches on both sides of every edge, and across
    state = PipelineState(pipeline.name, tmp_path)
    fix_backfill_range(state, state, pipeline, kit.bootstrap, "earliest")
    produce(kit, topic, range(60, 70), 3)  # comes too late to be history
    run(kit, pipeline, state, only_backfill=True)
    assert copied(kit, topic) == records(partitions=3, below=60)
    assert unfinished_backfill(state) is None
    run(kit, pipeline, state)
    assert copied(kit, topic) == records(partitions=3, below=70)


def test_history_of_a_running_stream_ends_where_it_began_although_the_topic_begins_later(
    kit: SparkKit, tmp_path: Path
) -> None:
    topic = kit.topic()
    kit.topic(name=f"{topic}.out")
    pipeline = copy(topic)
    main = PipelineState(pipeline.name, tmp_path)
    kit.numbers(topic, range(30))
    run(kit, pipeline, main)  # begins at the end
    kit.numbers(topic, range(30, 50))
    run(kit, pipeline, main)
    archived(kit, topic, tmp_path)
    delete_before(kit, topic, 45)
    beside = PipelineState(pipeline.name + BACKFILL_SUFFIX, tmp_path)
    fix_backfill_range(beside, main, pipeline, kit.bootstrap, "earliest")
    run(kit, pipeline, beside, only_backfill=True)
    assert copied(kit, topic) == records(partitions=1, below=50)


def test_a_gap_between_archive_and_topic_stops_a_backfill(kit: SparkKit, tmp_path: Path) -> None:
    topic = kit.topic()
    kit.topic(name=f"{topic}.out")
    kit.numbers(topic, range(10))
    archived(kit, topic, tmp_path)
    kit.numbers(topic, range(10, 20))
    delete_before(kit, topic, 15)
    pipeline = copy(topic)
    state = PipelineState(pipeline.name, tmp_path)
    fix_backfill_range(state, state, pipeline, kit.bootstrap, "earliest")
    with pytest.raises(Exception, match="offsets 10 to 14 were deleted"):
        run(kit, pipeline, state, only_backfill=True)
    assert unfinished_backfill(state) is not None


def test_a_range_is_whole_wherever_the_topic_begins_when_it_is_planned(kit: SparkKit, tmp_path: Path) -> None:
    """A batch that is repeated finds the topic shorter than before: the same rows, from other places."""
    import pyarrow as pa

    topic = kit.topic(2)
    produce(kit, topic, range(50), 2)
    archived(kit, topic, tmp_path)
    produce(kit, topic, range(50, 60), 2)
    cluster = Cluster(ClientConfig(bootstrap=kit.bootstrap))
    locator = ArchiveOffsetResolver(cluster, Subscription(topics=(topic,)))
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    wanted = [OffsetRange(TopicPartition(topic, partition), 11, 55 - partition) for partition in (0, 1)]
    for first, from_topic in ((0, 87), (11, 87), (12, 9), (50, 9)):
        delete_before(kit, topic, first, first)
        pieces, left = locator.split(wanted)
        found = [(row["partition"], row["offset"]) for piece in pieces for batch in read_piece(piece, schema)
                 for row in batch.to_pylist()]  # fmt: skip
        assert sum(one.size for one in left) == from_topic
        found += [(one.partition.partition, offset) for one in left for offset in range(one.start, one.end)]
        assert sorted(found) == [(one.partition.partition, at) for one in wanted for at in range(one.start, one.end)]
        assert locator.earliest(one.partition for one in wanted) == {one.partition: 0 for one in wanted}
    cluster.close()
