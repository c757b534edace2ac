"""A partition folder goes from Apache Kafka to headrace and back again, and every record is there each time."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.testing import LocalBroker
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.records import CODECS, create_topic, produce, read_all, transactions, values

TOPIC = "travels"
SMALL_SEGMENTS = {"segment.bytes": str(1024 * 1024)}
OWN_FILE = "partition.metadata"  # holds the topic's id, which is each cluster's own

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Written:
    """What Apache Kafka left in its data directory, and what it was given."""

    log_dir: Path
    everything: list[bytes]
    aborted: list[bytes]

    @property
    def folder(self) -> Path:
        return self.log_dir / f"{TOPIC}-0"

    @property
    def committed(self) -> list[bytes]:
        return [value for value in self.everything if value not in self.aborted]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Written:
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    sent: list[bytes] = []
    with kafka:
        create_topic(kafka.bootstrap, TOPIC, **SMALL_SEGMENTS)
        for number, codec in enumerate(CODECS):
            some = values(number, 500, 2000)
            produce(kafka.bootstrap, TOPIC, some, **{"compression.type": codec, "enable.idempotence": number % 2 == 0})
            sent += some
        kept, dropped = values(50, 30, 500), values(51, 30, 500)
        transactions(kafka.bootstrap, TOPIC, kept, dropped)
    return Written(kafka.log_dir, [*sent, *dropped, *kept], dropped)


@pytest.fixture(params=[True, False], ids=["after a clean shutdown", "after a crash"])
def broker(request, written, tmp_path) -> Iterator[LocalBroker]:
    """headrace with a topic whose files are those that Apache Kafka wrote."""
    with LocalBroker(data_dir=tmp_path / "data", settings={"node.id": "0"}) as broker:
        create_topic(broker.bootstrap, TOPIC, **SMALL_SEGMENTS)
        broker.stop()
        data = Path(broker.data_dir)
        move_in(written.folder, data / f"{TOPIC}-0")
        checkpoint = "recovery-point-offset-checkpoint"
        if request.param:
            shutil.copy(written.log_dir / checkpoint, data / checkpoint)
        else:
            (data / ".kafka_cleanshutdown").unlink()
            (data / checkpoint).unlink()
        broker.start()
        yield broker


def move_in(source: Path, target: Path) -> None:
    """All of a partition's files but the one with the topic's id."""
    for file in target.iterdir():
        if file.name != OWN_FILE:
            file.unlink()
    for file in source.iterdir():
        if file.name != OWN_FILE:
            shutil.copy(file, target / file.name)


def test_headrace_serves_what_kafka_wrote(broker, written):
    served = list(read_all(broker.bootstrap, TOPIC))
    assert [value for _, value in served] == written.everything
    assert [offset for offset, _ in served][:2500] == list(range(2500))


def test_headrace_hides_what_kafka_aborted(broker, written):
    served = [value for _, value in read_all(broker.bootstrap, TOPIC, isolation="read_committed")]
    assert served == written.committed


def test_headrace_verifies_what_kafka_wrote(written):
    command = [sys.executable, "-m", "headrace.cli.main", "log", "verify", "--deep", str(written.folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kafka_goes_on_with_what_headrace_continued(broker, written, tmp_path):
    more = values(77, 700, 2000)
    # Not idempotent: each cluster numbers its producers itself, so the numbers in the folder are taken.
    produce(broker.bootstrap, TOPIC, more, **{"compression.type": "zstd"})
    assert [value for _, value in read_all(broker.bootstrap, TOPIC)] == [*written.everything, *more]
    broker.stop()
    kafka = ApacheKafka(tmp_path)
    shutil.copytree(written.log_dir, kafka.log_dir)
    move_in(Path(broker.data_dir) / f"{TOPIC}-0", kafka.log_dir / f"{TOPIC}-0")
    with kafka:
        assert [value for _, value in read_all(kafka.bootstrap, TOPIC)] == [*written.everything, *more]
