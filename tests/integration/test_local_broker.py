"""LocalBroker and the pytest plugin: quick to start, honest when they fail, and nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.model.errors import InvalidConfig
from headrace.process.child import readable_within
from headrace.testing import LocalBroker

pytest_plugins = ["pytester"]

SECONDS_MAX = 30.0
# How many brokers in a row must leave nothing behind. The promise is 200; a hurried run may take fewer.
BROKERS_IN_A_ROW = int(os.environ.get("HEADRACE_BROKERS_IN_A_ROW", "200"))


def produce(broker: LocalBroker, *values: bytes, topic: str = "topic") -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
    failures = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: error and failures.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    assert not failures


def consume(broker: LocalBroker, count: int, topic: str = "topic") -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "never-joined",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = [consumer.poll(SECONDS_MAX) for _ in range(count)]
    finally:
        consumer.close()
    return [message.value() for message in messages]


def wait_until_gone(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        assert readable_within(descriptor, SECONDS_MAX), f"process {pid} still runs"
    finally:
        os.close(descriptor)


def test_a_broker_in_memory_takes_and_gives_records_and_touches_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LocalBroker() as broker:
        produce(broker, b"one", b"two")
        assert consume(broker, 2) == [b"one", b"two"]
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(RuntimeError):
            _ = broker.data_dir


def test_settings_go_by_kafkas_names(tmp_path):
    with LocalBroker(settings={"num.partitions": "3", "node.id": "7"}) as broker:
        produce(broker, b"x")
        client = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        metadata = client.list_topics("topic", SECONDS_MAX)
    assert len(metadata.topics["topic"].partitions) == 3
    assert list(metadata.brokers) == [7]


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest_name():
    with pytest.raises(InvalidConfig, match=r"num\.partitions"):
        LocalBroker(settings={"num.partition": "3"}).__enter__()


@pytest.mark.parametrize("name", ["listeners", "log.dirs", "storage"])
def test_what_the_arguments_decide_is_no_setting(name):
    with pytest.raises(InvalidConfig, match="LocalBroker decides"):
        LocalBroker(settings={name: "x"}).__enter__()


def test_memory_and_a_data_dir_exclude_each_other(tmp_path):
    with pytest.raises(ValueError):
        LocalBroker(memory=True, data_dir=tmp_path)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("count", "arguments"),
    [
        (BROKERS_IN_A_ROW, {}),
        (max(1, BROKERS_IN_A_ROW // 10), {"memory": False}),
        (max(1, BROKERS_IN_A_ROW // 4), {"in_process": True}),
        (max(1, BROKERS_IN_A_ROW // 10), {"in_process": True, "memory": False}),
    ],
    ids=["memory", "disk", "in-process", "in-process-disk"],
)
def test_many_in_a_row_leave_no_descriptor_thread_process_or_file(tmp_path, count, arguments):
    # In an interpreter of its own: what other tests still have open must not hide a leak, nor look like one.
    script = Path(__file__).with_name("brokers_in_a_row.py")
    command = [sys.executable, str(script), str(count), json.dumps(arguments)]
    done = subprocess.run(command, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = (json.loads(line) for line in done.stdout.splitlines())
    assert after == before
    assert list(tmp_path.iterdir()) == []


def test_acknowledged_records_survive_kill_and_the_port_stays():
    with LocalBroker(memory=False) as broker:
        produce(broker, b"one")
        port, pid = broker.port, broker.pid
        broker.kill()
        assert not broker.running
        broker.restart()
        assert (broker.port, broker.pid != pid) == (port, True)
        produce(broker, b"two")
        assert consume(broker, 2) == [b"one", b"two"]


def test_restart_is_a_clean_shutdown_and_a_start():
    with LocalBroker(memory=False) as broker:
        produce(broker, b"one")
        broker.restart()
        assert consume(broker, 1) == [b"one"]
        broker.stop()
        assert not broker.running
        broker.start()
        assert consume(broker, 1) == [b"one"]


def test_its_own_data_goes_and_given_data_stays(tmp_path):
    with LocalBroker(memory=False) as broker:
        own = Path(broker.data_dir)
        produce(broker, b"x")
        assert (own / "topic-0").is_dir()
    assert not own.exists()
    with LocalBroker(data_dir=tmp_path / "kept") as broker:
        produce(broker, b"kept")
    with LocalBroker(data_dir=tmp_path / "kept") as broker:
        assert consume(broker, 1) == [b"kept"]


def test_a_broker_on_a_thread_serves_like_any_other():
    with LocalBroker(in_process=True) as broker:
        produce(broker, b"one")
        assert consume(broker, 1) == [b"one"]
        assert broker.pid == os.getpid()
        with pytest.raises(RuntimeError, match="in_process"):
            broker.kill()


def test_a_port_in_use_is_reported():
    with LocalBroker() as first, pytest.raises(OSError, match="in use"):
        LocalBroker(port=first.port).__enter__()


def test_a_broker_that_cannot_start_says_why(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RuntimeError, match=r"(?s)before it served.*file"):
        LocalBroker(data_dir=tmp_path / "file").__enter__()


def test_a_broker_that_died_by_itself_does_not_go_unnoticed():
    broker = LocalBroker().__enter__()
    os.kill(broker.pid, signal.SIGKILL)
    wait_until_gone(broker.pid)
    assert not broker.running
    with pytest.raises(RuntimeError, match="ended by itself"):
        broker.close()


def test_a_failure_in_the_block_carries_what_the_broker_said():
    with pytest.raises(AssertionError) as failure, LocalBroker():
        raise AssertionError("something unexpected")
    assert "output of the broker" in failure.value.__notes__[0]


def test_what_the_broker_said_can_be_read_after_it_has_gone():
    broker = LocalBroker()
    assert broker.output() == ""
    with broker:
        pass
    assert "serves PLAINTEXT" in broker.output()


def test_the_broker_ends_with_its_parent_however_that_ends():
    code = (
        "import os, signal\n"
        "from headrace.testing import LocalBroker\n"
        "broker = LocalBroker().__enter__()\n"
        "print(broker.pid, flush=True)\n"
        "input()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        parent.stdin.write(b"\n")
        parent.stdin.close()
        assert readable_within(descriptor, SECONDS_MAX), "the broker outlived its parent"
        os.close(descriptor)


def test_importing_it_loads_no_client():
    code = "import sys, headrace.testing; sys.exit(any('kafka' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_fixtures_give_a_broker_and_fresh_topics(pytester):
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_broker_settings():
            return {"num.partitions": "2"}
        """
    )
    pytester.makepyfile(
        """
        from confluent_kafka import Producer

        seen = []

        def metadata(broker):
            return Producer({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30)

        def test_one(kafka_broker, kafka_topic):
            assert list(metadata(kafka_broker).topics[kafka_topic].partitions) == [0]
            seen.append((kafka_broker.pid, kafka_topic))

        def test_two(kafka_broker, kafka_bootstrap, kafka_topic, kafka_topic_factory):
            assert kafka_bootstrap == kafka_broker.bootstrap
            wide = kafka_topic_factory("wide", partitions=4, configs={"retention.ms": "1000"})
            assert wide.startswith("wide-")
            topics = metadata(kafka_broker).topics
            assert len(topics[wide].partitions) == 4
            pid, topic = seen[0]
            assert pid == kafka_broker.pid, "one broker for the session"
            assert topic not in topics, "a topic is gone after its test"
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_a_failing_test_shows_what_the_broker_said(pytester):
    pytester.makepyfile("def test_it(kafka_broker):\n    assert not kafka_broker.running\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*output of the broker on port*", "*serves PLAINTEXT*"])
