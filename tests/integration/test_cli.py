"""The command line against a real broker: what it does, what it prints, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid

import pytest

from headrace.cli.common.exit_codes import FAILURE, NOT_FOUND, OK, UNREACHABLE, USAGE
from headrace.cli.main import main
from headrace.testing import LocalBroker


@pytest.fixture(scope="module")
def broker():
    with LocalBroker(settings={"num.partitions": "2"}) as running:
        yield running


@pytest.fixture
def cli(broker, capfd, monkeypatch):
    """Runs a command line against the broker: exit code, stdout, stderr."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def topic(cli):
    name = f"t{uuid.uuid4().hex[:8]}"
    assert cli("topics", "create", name)[0] == OK
    return name


def lines(cli, *words):
    code, out, err = cli("consume", *words, "--json")
    assert code == OK, err
    return [json.loads(line) for line in out.splitlines()]


def in_a_process(broker, *words, **options):
    environment = os.environ | {"HEADRACE_BOOTSTRAP": broker.bootstrap}
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    return subprocess.Popen(command, env=environment, text=True, **options)


def test_a_topic_lives_from_create_to_delete(cli):
    name = f"t{uuid.uuid4().hex[:8]}"
    code, _, err = cli("topics", "create", name, "-p", 3, "-c", "retention.ms=5000")
    assert (code, err) == (OK, f"created: {name}\n")
    listed = json.loads(cli("topics", "list", "--json")[1])
    assert {"topic": name, "partitions": 3, "replication_factor": 1} in listed
    (described,) = json.loads(cli("topics", "describe", name, "--json")[1])
    assert described["configs"] == {"retention.ms": "5000"}
    assert described["partitions"][2] == {
        "partition": 2,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "start_offset": 0,
        "end_offset": 0,
    }
    assert cli("topics", "delete", name, "--yes")[0] == OK
    assert cli("topics", "describe", name)[0] == NOT_FOUND


def test_create_takes_the_brokers_defaults(cli, topic):
    (described,) = json.loads(cli("topics", "describe", topic, "--json")[1])
    assert len(described["partitions"]) == 2


def test_creating_twice_fails_unless_that_is_accepted(cli, topic):
    code, _, err = cli("topics", "create", topic)
    assert code == FAILURE
    assert "--if-not-exists" in err
    assert cli("topics", "create", topic, "--if-not-exists")[0] == OK


def test_a_wrong_topic_config_is_refused_with_the_nearest_right_one(cli):
    code, _, err = cli("topics", "create", "wrong", "-c", "retention_ms=1")
    assert code == FAILURE
    assert "retention.ms" in err
    assert "headrace config docs" in err


def test_validate_only_creates_nothing(cli):
    name = f"t{uuid.uuid4().hex[:8]}"
    code, _, err = cli("topics", "create", name, "--validate-only")
    assert (code, err) == (OK, f"valid: {name}\n")
    assert cli("topics", "describe", name)[0] == NOT_FOUND


def test_one_missing_topic_does_not_hide_the_others(cli, topic):
    code, out, err = cli("topics", "describe", topic, "nope", "--json")
    assert code == NOT_FOUND
    assert [one["topic"] for one in json.loads(out)] == [topic]
    assert "topic nope does not exist" in err


def test_people_get_tables(cli, topic):
    code, out, _ = cli("topics", "list")
    assert code == OK
    assert re.search(rf"{topic} +2 +1", out)
    assert "isr" in cli("topics", "describe", topic)[1]


def test_partitions_can_be_added_but_not_taken_away(cli, topic):
    assert cli("topics", "add-partitions", topic, "--more", 1)[2] == f"{topic} now has 3 partitions\n"
    assert cli("topics", "add-partitions", topic, "--total", 5)[0] == OK
    assert cli("topics", "add-partitions", topic, "--total", 2)[0] == FAILURE
    assert cli("topics", "add-partitions", "nope", "--more", 2)[0] == NOT_FOUND


def test_a_record_comes_back_with_all_that_was_said_of_it(cli, topic):
    words = ("--key", "k", "-H", "a=1", "-H", "a=2", "-p", 1, "--timestamp", 1_700_000_000_000)
    code, _, err = cli("produce", topic, "hello", *words)
    assert (code, err) == (OK, f"sent to {topic}-1 at offset 0\n")
    assert lines(cli, topic) == [
        {
            "topic": topic,
            "partition": 1,
            "offset": 0,
            "timestamp": 1_700_000_000_000,
            "timestamp_type": "CreateTime",
            "key": "k",
            "value": "hello",
            "headers": [["a", "1"], ["a", "2"]],
        }
    ]


def test_a_file_is_a_record_a_line(cli, topic, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"k{n}:value {n}\n" for n in range(5000)))
    code, _, err = cli("produce", topic, "--file", file, "-K", ":", "-z", "lz4")
    assert code == OK
    assert "sent 5,000 records" in err
    values = {row["key"]: row["value"] for row in lines(cli, topic)}
    assert values == {f"k{n}": f"value {n}" for n in range(5000)}


def test_stdin_is_a_record_a_line(broker, cli, topic):
    process = in_a_process(broker, "produce", topic, "-q", "-p", "0", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _, err = process.communicate("one\n\nthree", timeout=30)
    assert (process.returncode, err) == (OK, "")
    assert cli("consume", topic)[1] == "one\n\nthree\n"


def test_a_pipe_from_consume_to_produce_copies_records(broker, cli, topic):
    copy = f"{topic}-copy"
    assert cli("topics", "create", copy)[0] == OK
    cli("produce", topic, "v", "-k", "k", "-H", "h=x", "-p", 1)
    cli("produce", topic, "--key", "gone", "--tombstone")
    source = in_a_process(broker, "consume", topic, "--json", stdout=subprocess.PIPE)
    sink = in_a_process(broker, "produce", copy, "--json", stdin=source.stdout, stderr=subprocess.PIPE)
    source.stdout.close()
    assert (sink.wait(30), source.wait(30)) == (OK, OK)
    sink.stderr.close()

    def seen(name):
        return sorted((r["partition"], str(r["key"]), str(r["value"]), r["headers"]) for r in lines(cli, name))

    assert seen(copy) == seen(topic)
    assert ("gone", "None") in {(key, value) for _, key, value, _ in seen(copy)}


def test_a_line_that_is_no_record_is_told_with_its_number(cli, topic, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text('{"value": 1}\n{"valu": 2}\n')
    code, _, err = cli("produce", topic, "--json", "--file", file)
    assert code == USAGE
    assert "line 2: " in err
    assert len(lines(cli, topic)) == 1


def test_reading_begins_where_one_says(cli, topic):
    for number in range(5):
        cli("produce", topic, f"v{number}", "-p", 0, "--timestamp", 1_700_000_000_000 + number * 1000)

    def values(*words):
        return [row["value"] for row in lines(cli, topic, *words)]

    assert values() == values("--from-beginning") == [f"v{number}" for number in range(5)]
    assert values("--offset", 3) == ["v3", "v4"]
    assert values("--offset", -1) == ["v4"]
    assert values("--from-time", 1_700_000_001_500, "-p", 0) == ["v2", "v3", "v4"]
    assert values("-n", 2) == ["v0", "v1"]
    assert values("-p", 1) == []


def test_an_offset_that_is_not_there_is_told(cli, topic):
    code, _, err = cli("consume", topic, "-p", 0, "--offset", 99)
    assert code == FAILURE
    assert "does not have offset 99" in err
    assert f"headrace topics describe {topic}" in err


def test_a_partition_or_topic_that_is_not_there_is_not_found(cli, topic):
    assert cli("consume", topic, "-p", 7)[0] == NOT_FOUND
    assert cli("consume", "nope")[0] == NOT_FOUND
    assert cli("topics", "describe", "nope")[0] == NOT_FOUND, "asking must not have created it"


def test_records_are_printed_as_one_likes(cli, topic):
    cli("produce", topic, "v", "-k", "k", "-p", 0, "--timestamp", 5)
    assert cli("consume", topic)[1] == "v\n"
    assert cli("consume", topic, "-v")[1] == "0\t0\t5\tk\t\tv\n"
    assert cli("consume", topic, "--format", "{partition}/{offset} {key}={value};")[1] == "0/0 k=v;"


def test_following_prints_what_comes_until_it_is_stopped(broker, cli, topic):
    process = in_a_process(broker, "consume", topic, "-f", "--from-beginning", stdout=subprocess.PIPE)
    try:
        cli("produce", topic, "first", "-p", 0)
        assert process.stdout.readline() == "first\n"
        cli("produce", topic, "second", "-p", 0)
        assert process.stdout.readline() == "second\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == OK, "Ctrl-C is how following ends"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_reader_that_has_enough_may_hang_up(broker, cli, topic, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("x" * 100 + "\n" * 20_000)
    cli("produce", topic, "--file", file)
    process = in_a_process(broker, "consume", topic, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    process.wait(30)
    assert "Traceback" not in error


def test_the_oldest_records_can_be_deleted(cli, topic):
    for _ in range(4):
        cli("produce", topic, "v", "-p", 0)
    code, _, err = cli("topics", "delete-records", topic, "--before", 3, "-p", 0, "--yes")
    assert (code, err) == (OK, f"{topic}-0 now starts at offset 3\n")
    assert [row["offset"] for row in lines(cli, topic)] == [3]
    assert cli("topics", "delete-records", topic, "--before", "end", "--yes")[0] == OK
    assert lines(cli, topic) == []


def test_topic_configs_are_set_shown_and_unset(cli, topic):
    whose = ("--topic", topic)
    assert cli("configs", "set", "retention.ms=1000", "cleanup.policy=compact", *whose)[0] == OK
    assert cli("configs", "get", "retention.ms", *whose)[1] == "1000\n"
    assert cli("configs", "get", "retention.ms", "segment.ms", *whose)[1] == "retention.ms=1000\nsegment.ms=604800000\n"
    shown = json.loads(cli("configs", "list", *whose, "--json")[1])
    assert {row["name"]: row["value"] for row in shown} == {"retention.ms": "1000", "cleanup.policy": "compact"}
    everything = {row["name"]: row for row in json.loads(cli("configs", "list", *whose, "--all", "--json")[1])}
    assert everything["flush.policy"]["source"] == "default"
    assert "on disk" in everything["flush.policy"]["doc"]
    assert cli("configs", "unset", "retention.ms", *whose)[0] == OK
    assert cli("topics", "alter", topic, "--unset", "cleanup.policy", "--set", "segment.ms=5")[0] == OK
    shown = json.loads(cli("configs", "list", *whose, "--json")[1])
    assert [(row["name"], row["value"]) for row in shown] == [("segment.ms", "5")]


def test_configs_that_are_wrong_or_not_there_are_told(cli, topic):
    code, _, err = cli("configs", "set", "retention.ms=soon", "--topic", topic)
    assert code == FAILURE
    assert "soon" in err
    code, _, err = cli("configs", "get", "retension.ms", "--topic", topic)
    assert code == NOT_FOUND
    assert "did you mean retention.ms?" in err
    assert cli("configs", "list", "--topic", "nope")[0] == NOT_FOUND
    assert cli("configs", "list", "--broker", "99")[0] == NOT_FOUND
    assert cli("configs", "set", "retention.ms=7", "--topic", topic, "--validate-only")[0] == OK
    assert cli("configs", "list", "--topic", topic, "--json")[1] == "[]\n"


def test_group_configs_are_set_shown_and_unset(cli):
    whose = ("--group", "not there yet")
    assert cli("configs", "set", "consumer.session.timeout.ms=50000", *whose)[0] == OK
    assert cli("configs", "get", "consumer.session.timeout.ms", *whose)[1] == "50000\n"
    shown = json.loads(cli("configs", "list", *whose, "--json")[1])
    assert [(row["name"], row["value"], row["source"]) for row in shown] == [
        ("consumer.session.timeout.ms", "50000", "group")
    ]
    everything = json.loads(cli("configs", "list", *whose, "--all", "--json")[1])
    assert {row["name"] for row in everything if row["source"] == "default"} == {
        "consumer.assignment.interval.ms",
        "consumer.heartbeat.interval.ms",
    }
    code, _, err = cli("configs", "set", "consumer.session.timeout.ms=1", *whose)
    assert (code, "between 45000 and 60000" in err) == (FAILURE, True)
    code, _, err = cli("configs", "set", "share.record.lock.duration.ms=30000", *whose)
    assert (code, "is for share groups" in err) == (FAILURE, True)
    assert cli("configs", "unset", "consumer.session.timeout.ms", *whose)[0] == OK
    assert cli("configs", "list", *whose, "--json")[1] == "[]\n"
    assert cli("configs", "list", *whose, "--topic", "t")[0] == USAGE


def test_broker_configs_are_set_for_one_or_for_all(cli):
    shown = json.loads(cli("configs", "list", "--broker", 1, "--json")[1])
    assert {"num.partitions": "2"}.items() <= {row["name"]: row["value"] for row in shown}.items()
    assert cli("configs", "set", "message.max.bytes=2000000", "--all-brokers")[0] == OK
    assert cli("configs", "get", "message.max.bytes", "--broker", 1)[1] == "2000000\n"
    assert cli("configs", "set", "message.max.bytes=3000000", "--broker", 1)[0] == OK
    assert cli("configs", "get", "message.max.bytes", "--broker", 1)[1] == "3000000\n"
    assert cli("configs", "unset", "message.max.bytes", "--broker", 1)[0] == OK
    assert cli("configs", "unset", "message.max.bytes", "--all-brokers")[0] == OK
    assert cli("configs", "get", "message.max.bytes", "--broker", 1)[1] == "1048588\n"


def test_log_levels_are_set_and_unset(cli):
    assert cli("configs", "set", "headrace.broker=DEBUG", "--loggers", 1)[0] == OK
    rows = {row["name"]: row["value"] for row in json.loads(cli("configs", "list", "--loggers", 1, "--json")[1])}
    assert rows["headrace.broker"] == "DEBUG"
    assert cli("configs", "unset", "headrace.broker", "--loggers", 1)[0] == OK


def test_a_record_that_is_too_large_is_refused_with_what_to_do(cli):
    name = f"t{uuid.uuid4().hex[:8]}"
    cli("topics", "create", name, "-c", "max.message.bytes=200")
    code, _, err = cli("produce", name, "x" * 500)
    assert code == FAILURE
    assert "max.message.bytes" in err


def test_a_record_for_a_partition_that_is_not_there_is_not_found(cli, topic):
    assert cli("produce", topic, "v", "-p", 99, "--timeout", 5)[0] == NOT_FOUND


def test_somebody_else_at_the_brokers_port_is_told(cli):
    """Whoever listens there may hang up, or answer in another language."""
    for answer, told in ((b"", "closed the connection"), (b"HTTP/1.1 400 Bad Request\r\n", "does not speak Kafka")):
        with socket.create_server(("127.0.0.1", 0)) as server:
            bootstrap = f"127.0.0.1:{server.getsockname()[1]}"
            stranger = threading.Thread(target=_answer_two_connections, args=(server, answer))
            stranger.start()
            code, _, err = cli("configs", "list", "--topic", "x", "--bootstrap", bootstrap)
            stranger.join()
        assert code in (FAILURE, UNREACHABLE)
        assert told in err


def _answer_two_connections(server: socket.socket, answer: bytes) -> None:
    server.accept()[0].close()  # the knock on the door
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


def test_bench_measures_and_cleans_up(cli):
    words = ("--messages", 2000, "--seconds", 0.2, "--rate", 500, "--partitions", 2)
    code, out, err = cli("bench", *words, "--json")
    assert code == OK, err
    report = json.loads(out)
    assert report["results"]["produce"]["messages"] == 2000
    assert report["results"]["consume"]["messages_per_s"] > 0
    assert 0 < report["results"]["latency"]["p50"] <= report["results"]["latency"]["p99.9"]
    assert report["settings"]["acks"] == "all"
    code, out, _ = cli("bench", *words)
    assert "msg/s" in out
    assert "headrace-bench" not in cli("topics", "list")[1]


def test_the_log_of_a_running_broker_verifies(tmp_path, capfd):
    with LocalBroker(data_dir=tmp_path) as running:
        place = ("--bootstrap", running.bootstrap)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            assert main(["produce", "orders", codec, "-k", "k", "-z", codec, *place]) == OK
        capfd.readouterr()
        assert main(["log", "verify", str(tmp_path), "--deep", "--json"]) == OK
        report = json.loads(capfd.readouterr().out)
        assert report["records"] >= 5
    assert main(["log", "verify", str(tmp_path), "--deep"]) == OK
    assert main(["doctor", "--data-dir", str(tmp_path), "--set", "listeners=PLAINTEXT://127.0.0.1:0"]) == OK
    assert "stopped cleanly" in capfd.readouterr().out


def test_start_serves_and_stops_on_a_signal(tmp_path):
    command = [sys.executable, "-m", "headrace.cli.main", "start", "--listen", "127.0.0.1:0", "-d", str(tmp_path)]
    command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert "127.0.0.1" in process.stdout.readline()
        process.terminate()
        assert process.wait(30) == OK
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
