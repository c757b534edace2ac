"""kcat, the command-line client of Debian: round trips with every codec, listings, offset queries."""

import json
import shutil
import subprocess

import pytest

from tests.compat.client_confluent import Confluent
from tests.compat.client_driver import SECONDS_MAX, Sent
from tests.compat.clients import CODECS, stored_codecs
from tests.compat.nodes import of_one_broker

A_TIME_MS = 1_700_000_000_000

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: apt-get install kcat")


@pytest.fixture
def kcat(bootstrap):
    """`kcat -b <broker>` with further arguments; its standard output, or the test fails with what it said."""

    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        command = ["kcat", "-b", bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=SECONDS_MAX)
        assert done.returncode == 0, done.stderr.decode()
        assert b"ERROR" not in done.stderr, done.stderr.decode()
        return done.stdout

    return run


@pytest.mark.parametrize("codec", CODECS)
def test_lines_come_back_as_they_went_in(kcat, bootstrap, topic, codec):
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    kcat("-P", "-t", topic, "-p", "0", "-z", codec, stdin=lines)
    assert codec in stored_codecs(bootstrap, topic)
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q") == lines


@pytest.mark.parametrize("codec", CODECS)
def test_an_idempotent_kcat_delivers_each_line_once(kcat, topic, codec):
    lines = b"".join(b"%d\n" % number for number in range(1000))
    kcat("-P", "-t", topic, "-p", "0", "-z", codec, "-X", "enable.idempotence=true", stdin=lines)
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q") == lines


def test_keys_headers_and_nulls_come_back(kcat, topic):
    kcat("-P", "-t", topic, "-p", "0", "-K:", "-H", "one=1", "-H", "bare", stdin=b"key:value\n")
    kcat("-P", "-t", topic, "-p", "0", "-K:", "-Z", stdin=b"gone:\n")
    form = "%o %K %k %S %s %h\n"
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", form).splitlines() == [
        b"0 3 key 5 value one=1,bare=NULL",
        b"1 4 gone -1  ",
    ]


def test_a_big_file_is_one_record(kcat, new_topic, tmp_path):
    topic = new_topic(**{"max.message.bytes": str(8 * 1024 * 1024)})
    content = bytes(number * 31 % 251 for number in range(3 * 1024 * 1024))
    file = tmp_path / "big"
    file.write_bytes(content)
    kcat("-P", "-t", topic, "-p", "0", "-X", "message.max.bytes=8000000", str(file))
    read = kcat(
        "-C", "-t", topic, "-p", "0", "-o", "0", "-c", "1", "-q", "-D", "", "-X", "fetch.message.max.bytes=8000000"
    )
    assert read == content


@pytest.mark.parametrize(("start", "first"), [("beginning", 0), ("3", 3), ("-2", 8), (f"s@{A_TIME_MS + 5}", 5)])
def test_reading_starts_where_it_is_told(kcat, bootstrap, topic, start, first):
    records = [Sent(b"%d" % number, timestamp_ms=A_TIME_MS + number) for number in range(10)]
    Confluent(bootstrap).produce(topic, records)
    read = kcat("-C", "-t", topic, "-p", "0", "-o", start, "-e", "-q", "-f", "%o %T\n").decode().splitlines()
    assert read == [f"{number} {A_TIME_MS + number}" for number in range(first, 10)]


@of_one_broker
def test_the_listing_names_brokers_topics_and_partitions(kcat, bootstrap, new_topic):
    topic = new_topic(partitions=3)
    listing = json.loads(kcat("-L", "-J", "-t", topic))
    (broker,) = listing["brokers"]
    assert broker["name"] == bootstrap
    (described,) = listing["topics"]
    assert described["topic"] == topic
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert {part["leader"] for part in described["partitions"]} == {broker["id"]}


def test_offsets_are_queried_by_time_and_by_name(kcat, bootstrap, topic):
    records = [Sent(b"x", timestamp_ms=A_TIME_MS + 1000 * number) for number in range(5)]
    Confluent(bootstrap).produce(topic, records)

    def query(when: int) -> int:
        (line,) = kcat("-Q", "-t", f"{topic}:0:{when}").decode().splitlines()
        assert line.startswith(f"{topic} [0] offset ")
        return int(line.rsplit(" ", 1)[1])

    assert query(A_TIME_MS) == 0
    assert query(A_TIME_MS + 1) == 1
    assert query(A_TIME_MS + 4000) == 4
    assert query(-2) == 0
    assert query(-1) == 5
