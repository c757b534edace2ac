"""Streaming reads: nothing lost, nothing twice, whatever happens to the topic, the broker or the query."""

import os
import time

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import NewPartitions

from headrace.testing import LocalBroker
from tests.spark.kit import SparkKit
from tests.spark.test_batch_read import delete_records


def wait_for(condition, what: str, query=None, seconds: float = 120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        if query is not None and query.exception():
            raise AssertionError(str(query.exception()))
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def test_available_now_reads_what_is_there_in_limited_batches(kit, checkpoint):
    topic = kit.topic(partitions=3)
    kit.numbers(topic, range(1000))
    stream = kit.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=300)
    query = kit.to_memory(stream, "out", checkpoint, availableNow=True)
    assert kit.written(checkpoint.parent / "out") == list(range(1000))
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    assert 4 <= len(batches) <= 6
    assert all(progress.numInputRows <= 303 for progress in batches)
    kit.numbers(topic, range(1000, 1200))
    kit.to_memory(stream, "out", checkpoint, availableNow=True)
    assert kit.written(checkpoint.parent / "out") == list(range(1200))


def test_a_query_that_starts_at_latest_loses_nothing_when_its_first_batch_is_repeated(kit, checkpoint, tmp_path):
    """The trap of sources whose initial offset is asked for anew: the failed batch would be skipped in silence."""
    topic = kit.topic()
    kit.numbers(topic, range(100))
    seen = tmp_path / "seen"
    seen.mkdir()

    def fail_once(frame, batch_id):
        numbers = sorted(int(row.value) for row in frame.select("value").collect())
        if numbers and not (seen / "failed").exists():
            (seen / "failed").touch()
            raise RuntimeError("the sink fails")
        (seen / f"{batch_id}.txt").write_text(",".join(map(str, numbers)))

    def start():
        stream = kit.stream(topic)
        return kit.started(stream.writeStream.foreachBatch(fail_once).option("checkpointLocation", str(checkpoint)))

    query = start()
    wait_for(lambda: query.status["message"] == "Waiting for data to arrive" or query.recentProgress, "a start", query)
    kit.numbers(topic, range(100, 120))
    wait_for(lambda: not query.isActive, "the failure")
    kit.numbers(topic, range(120, 150))
    query = start()

    def numbers():
        texts = (file.read_text() for file in seen.glob("*.txt"))
        return sorted(int(number) for text in texts for number in text.split(",") if number)

    wait_for(lambda: len(numbers()) >= 50, "the rows", query)
    query.stop()
    assert numbers() == list(range(100, 150))


def test_partitions_added_under_a_running_query_are_read_from_their_beginning(kit, checkpoint):
    topic = kit.topic()
    kit.numbers(topic, range(10))
    query = kit.to_memory(kit.stream(topic, startingOffsets="earliest"), "out", checkpoint)
    out = checkpoint.parent / "out"
    wait_for(lambda: kit.written(out) == list(range(10)), "the first rows", query)
    kit.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    kit.numbers(topic, range(10, 20), partition=2)
    wait_for(lambda: kit.written(out) == list(range(20)), "the new partition's rows", query)


def test_a_topic_made_anew_is_loss_unless_that_is_allowed(kit, checkpoint):
    topic = kit.topic()
    kit.numbers(topic, range(10))
    strict = kit.to_memory(kit.stream(topic, startingOffsets="earliest"), "strict", checkpoint)
    lenient_stream = kit.stream(topic, startingOffsets="earliest", failOnDataLoss="false")
    lenient = kit.to_memory(lenient_stream, "lenient", checkpoint.parent / "other")
    strict_out, lenient_out = checkpoint.parent / "strict", checkpoint.parent / "lenient"
    wait_for(lambda: kit.written(strict_out) == kit.written(lenient_out) == list(range(10)), "rows", lenient)
    kit.delete(topic)
    kit.topic(name=topic)
    kit.numbers(topic, range(100, 150))  # more than there were: the end alone would not betray the change
    wait_for(lambda: not strict.isActive, "the strict query's end")
    assert "what the query had not read of it is lost" in str(strict.exception())
    wait_for(lambda: kit.written(lenient_out) == [*range(10), *range(100, 150)], "the new topic's rows", lenient)


def test_retention_that_passes_the_position(kit, checkpoint):
    topic = kit.topic()
    kit.numbers(topic, range(10))
    stream = kit.stream(topic, startingOffsets="earliest")
    kit.to_memory(stream, "out", checkpoint, availableNow=True)
    kit.numbers(topic, range(10, 30))
    delete_records(kit, topic, 15)
    query = kit.to_memory(stream, "out", checkpoint)
    wait_for(lambda: not query.isActive, "the end of the query")
    assert "offsets 10 to 14 were deleted" in str(query.exception())
    lenient = kit.stream(topic, startingOffsets="earliest", failOnDataLoss="false")
    kit.to_memory(lenient, "out", checkpoint, availableNow=True)
    assert kit.written(checkpoint.parent / "out") == [*range(10), *range(15, 30)]


def test_the_query_is_a_group_that_tools_can_see(kit, checkpoint):
    topic = kit.topic(partitions=2)
    kit.numbers(topic, range(50), partition=0)
    kit.numbers(topic, range(50, 80), partition=1)
    group = f"{topic}-query"
    query = kit.to_memory(
        kit.stream(topic, startingOffsets="earliest", commitGroup=group), "out", checkpoint, availableNow=True
    )
    consumer = Consumer({"bootstrap.servers": kit.bootstrap, "group.id": group})
    committed = consumer.committed([Partition(topic, 0), Partition(topic, 1)], timeout=30)
    consumer.close()
    assert [one.offset for one in committed] == [50, 30]
    source = query.recentProgress[0].sources[0]
    assert source.latestOffset is not None


def test_a_broker_that_is_away_is_waited_for(spark, checkpoint):
    with LocalBroker(memory=False) as broker:
        kit = SparkKit(spark, broker.bootstrap)
        topic = kit.topic()
        kit.numbers(topic, range(10))
        query = kit.to_memory(kit.stream(topic, startingOffsets="earliest"), "out", checkpoint)
        out = checkpoint.parent / "out"
        wait_for(lambda: kit.written(out) == list(range(10)), "the first rows", query)
        broker.kill()
        time.sleep(3)
        assert query.isActive
        broker.restart()
        kit.numbers(topic, range(10, 20))
        wait_for(lambda: kit.written(out) == list(range(20)), "the rows after the restart", query)
        kit.close()


def test_an_unreadable_checkpoint_is_explained(kit, checkpoint):
    topic = kit.topic()
    kit.numbers(topic, range(10))
    stream = kit.stream(topic, startingOffsets="earliest")
    kit.to_memory(stream, "out", checkpoint, availableNow=True)
    log = sorted((checkpoint / "offsets").iterdir(), key=lambda file: file.name)
    last = [file for file in log if file.name.isdigit()][-1]
    lines = last.read_text().splitlines()
    last.write_text("\n".join([*lines[:-1], '{"logOffset":3}']))
    for crc in (checkpoint / "offsets").glob(".*.crc"):
        crc.unlink()
    query = kit.to_memory(stream, "out", checkpoint)
    wait_for(lambda: not query.isActive, "the end of the query")
    assert "belongs to another source" in str(query.exception())


def test_spark_speaks_to_its_workers_over_unix_sockets(spark):
    """Over TCP every task of ours waits 40 ms for an acknowledgement."""
    tasks = spark.sparkContext.parallelize([None], 1)
    assert tasks.map(lambda _: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]).collect() == ["True"]
