"""Apache Kafka's DumpLogSegments looks at the files that headrace writes, and finds nothing wrong."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.storage.io.file_system import room_of
from headrace.storage.io.preallocation import PREALLOCATION_UNIT, ROUNDS_MIN
from headrace.testing import LocalBroker
from tests.interop.apache_kafka import tool
from tests.interop.records import CODECS, QUIET, SECONDS_MAX, create_topic, produce, values

DUMP = "org.apache.kafka.tools.DumpLogSegments"
MIB = 1024 * 1024
SMALL_SEGMENTS = {"segment.bytes": str(MIB)}
COMPACTED_KEYS = 50
TRANSACTIONS = 8

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """Partitions of every kind, after a kill, a recovery, more records and a clean shutdown."""
    with LocalBroker(memory=False, settings={"log.cleaner.backoff.ms": "100"}) as broker:
        create_topic(broker.bootstrap, "codecs", **SMALL_SEGMENTS)
        create_topic(broker.bootstrap, "times", **SMALL_SEGMENTS, **{"message.timestamp.type": "LogAppendTime"})
        create_topic(broker.bootstrap, "recompressed", **SMALL_SEGMENTS, **{"compression.type": "zstd"})
        for number, codec in enumerate(CODECS):
            sent = values(number, 600, 2000)
            idempotent = number % 2 == 0
            settings = {"compression.type": codec, "enable.idempotence": idempotent}
            for topic in ("codecs", "times", "recompressed"):
                produce(broker.bootstrap, topic, sent, **settings)
        broker.kill()
        broker.start()
        produce(broker.bootstrap, "codecs", values(99, 600, 2000), **{"enable.idempotence": True})
        compact(broker)
        transact(broker)
        broker.stop()
        yield Path(broker.data_dir)


def compact(broker: LocalBroker) -> None:
    """A topic in which most records have been overwritten, and a cleaner that has been there."""
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **SMALL_SEGMENTS}
    create_topic(broker.bootstrap, "compacted", **configs)
    produce(broker.bootstrap, "compacted", values(7, 3000, 2000), keys=COMPACTED_KEYS)
    deadline = time.monotonic() + SECONDS_MAX
    # 6 MB were sent. The active segment is never cleaned, and what is left of the others fits beside it.
    while log_bytes(Path(broker.data_dir, "compacted-0")) > 2 * MIB:
        assert time.monotonic() < deadline, "the log was never compacted"


def transact(broker: LocalBroker) -> None:
    """Transactions of half a segment each, every second one aborted."""
    create_topic(broker.bootstrap, "transactional", **SMALL_SEGMENTS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t", **QUIET})
    producer.init_transactions(SECONDS_MAX)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for value in values(number, 250, 2000):
            producer.produce("transactional", value)
        producer.flush(SECONDS_MAX)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(SECONDS_MAX)


def log_bytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.glob("*.log"))
    except FileNotFoundError:  # replaced by its cleaned successor just now
        return log_bytes(folder)


def files(data_dir: Path, topic: str, *suffixes: str) -> str:
    found = sorted(file for file in (data_dir / f"{topic}-0").iterdir() if file.suffix in suffixes)
    assert found
    return ",".join(map(str, found))


def segments(data_dir: Path, topic: str) -> int:
    return len(list((data_dir / f"{topic}-0").glob("*.log")))


def complaints(errors: str) -> list[str]:
    """What the tool found, without what it also finds in Kafka's own files.

    It begins each segment expecting offset 0, so that the first record of every later one follows "-1".
    """
    lines = [line for line in errors.splitlines() if line.strip()]
    return [line for line in lines if not re.match(r"Non-consecutive offsets in |  -1 is followed by \d+$", line)]


@pytest.mark.parametrize("topic", ["codecs", "times", "recompressed"])
def test_every_record_of_every_segment_is_valid_and_in_order(data_dir, topic):
    assert segments(data_dir, topic) > 2
    dump = tool(DUMP, "--deep-iteration", "--files", files(data_dir, topic, ".log"))
    assert complaints(dump.errors) == []
    batches = [line for line in dump.lines if line.startswith("baseOffset")]
    assert batches
    assert all("isvalid: true" in line for line in batches)
    offsets = [int(re.match(r"\| offset: (\d+) ", line).group(1)) for line in dump.lines if line.startswith("| ")]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) == 600 * (len(CODECS) + (topic == "codecs"))
    codecs = set(re.findall(r"compresscodec: (\w+)", dump.text))
    assert codecs == ({"zstd"} if topic == "recompressed" else set(CODECS))
    assert ("LogAppendTime" in dump.text) == (topic == "times")


def test_a_compacted_log_keeps_the_last_record_of_each_key_and_is_valid(data_dir):
    dump = tool(DUMP, "--deep-iteration", "--files", files(data_dir, "compacted", ".log"))
    batches = [line for line in dump.lines if line.startswith("baseOffset")]
    assert all("isvalid: true" in line for line in batches)
    offsets = [int(re.match(r"\| offset: (\d+) ", line).group(1)) for line in dump.lines if line.startswith("| ")]
    assert offsets == sorted(set(offsets))
    assert set(range(3000 - COMPACTED_KEYS, 3000)) <= set(offsets)
    assert len(offsets) < 3000


@pytest.mark.parametrize("topic", ["codecs", "times", "recompressed", "compacted", "transactional"])
def test_the_indexes_agree_with_the_logs(data_dir, topic):
    indexes = files(data_dir, topic, ".index", ".timeindex")
    sanity = tool(DUMP, "--index-sanity-check", "--files", indexes)
    assert len(re.findall("passed sanity check|is empty", sanity.text)) == len(indexes.split(","))
    # Without a word about it: every entry is looked up in the log.
    verified = tool(DUMP, "--verify-index-only", "--files", indexes)
    assert complaints(verified.errors) == []
    assert "mismatch" not in verified.text


def test_producer_snapshots_are_read_by_kafka(data_dir):
    dump = tool(DUMP, "--files", files(data_dir, "codecs", ".snapshot"))
    assert complaints(dump.errors) == []
    rows = [line for line in dump.lines if line.startswith("producerId")]
    assert len({re.match(r"producerId: (\d+) ", row).group(1) for row in rows}) == 4


def test_transactions_their_ends_and_the_index_of_aborted_ones_are_read_by_kafka(data_dir):
    assert segments(data_dir, "transactional") > 2
    dump = tool(DUMP, "--deep-iteration", "--files", files(data_dir, "transactional", ".log"))
    assert complaints(dump.errors) == []
    assert "isvalid: false" not in dump.text
    ends = re.findall(r"\| offset: (\d+) .*endTxnMarker: (COMMIT|ABORT)", dump.text)
    assert [how for _, how in ends] == ["COMMIT", "ABORT"] * (TRANSACTIONS // 2)
    index = tool(DUMP, "--files", files(data_dir, "transactional", ".txnindex"))
    assert complaints(index.errors) == []
    aborted = re.findall(r"producerId: \d+ firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", index.text)
    begins = [0, *(int(offset) + 1 for offset, _ in ends)]
    expected = [(begins[n], int(offset), int(offset) + 1) for n, (offset, how) in enumerate(ends) if how == "ABORT"]
    assert [tuple(map(int, row)) for row in aborted] == expected


def test_the_judge_sees_a_flipped_bit(data_dir, tmp_path):
    """What finds nothing must be able to find something."""
    source = data_dir / "codecs-0" / f"{0:020}.log"
    broken = bytearray(source.read_bytes())
    broken[500] ^= 1
    (tmp_path / source.name).write_bytes(broken)
    assert "isvalid: false" in tool(DUMP, "--files", str(tmp_path / source.name)).text


def test_the_log_of_a_running_broker_is_read_to_its_end():
    """It has room ahead of its last batch, which is no error to a tool that comes upon it."""
    with LocalBroker(memory=False) as broker:
        create_topic(broker.bootstrap, "live")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, **QUIET})
        for number in range(5 * ROUNDS_MIN):
            producer.produce("live", b"value %d" % number)
            assert producer.flush(SECONDS_MAX) == 0
        (log,) = Path(broker.data_dir, "live-0").glob("*.log")
        assert log.read_bytes().endswith(room_of(PREALLOCATION_UNIT))
        dump = tool(DUMP, "--deep-iteration", "--files", str(log))
    batches = [line for line in dump.lines if line.startswith("baseOffset")]
    assert len(batches) == 5 * ROUNDS_MIN
    assert all("isvalid: true" in line for line in batches)
    assert re.search(r"Found \d+ invalid bytes at the end of", dump.text)
