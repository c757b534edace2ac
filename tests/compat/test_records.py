"""What goes in comes out: every codec, every client, read by every client."""

import time
from itertools import pairwise

import pytest

from tests.compat.client_driver import CREATE_TIME, LOG_APPEND_TIME, Read, Sent
from tests.compat.clients import CLIENTS, CODECS, stored_codecs

A_TIME_MS = 1_700_000_000_000

VARIED = (
    Sent(b"plain"),
    Sent(b"keyed", key=b"key"),
    Sent(b"", key=b""),
    Sent(None, key=b"a tombstone"),
    Sent(b"headers", headers=(("one", b"1"), ("empty", b""), ("one", b"again"), ("nul", b"\0"))),
    Sent("ümläut ☃".encode(), key="schlüssel".encode(), headers=(("kopfzeile-ü", b"x"),)),
    Sent(b"timed", timestamp_ms=A_TIME_MS),
    Sent(b"x" * 10_000),
)


def content(record: Sent | Read) -> tuple:
    return record.value, record.key, record.headers


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_records_of_one_client_are_read_by_another(bootstrap, topic, writer, reader, codec):
    offsets = CLIENTS[writer](bootstrap).produce(topic, VARIED, codec=codec)
    read = CLIENTS[reader](bootstrap).consume(topic, len(VARIED))
    assert codec in stored_codecs(bootstrap, topic)
    assert offsets == list(range(len(VARIED)))
    assert [record.offset for record in read] == offsets
    assert [content(record) for record in read] == [content(record) for record in VARIED]
    assert read[6].timestamp_ms == A_TIME_MS
    assert {record.timestamp_type for record in read} == {CREATE_TIME}


def test_a_record_of_nothing_at_all_is_a_record(bootstrap, topic, client):
    nothing = Sent(None)
    # The other two clients refuse to send such a record; all must read it.
    CLIENTS["confluent-kafka"](bootstrap).produce(topic, [nothing, Sent(b"next")])
    assert [content(record) for record in client.consume(topic, 2)] == [(None, None, ()), (b"next", None, ())]


@pytest.mark.parametrize("writer", ["confluent-kafka", "aiokafka"])  # kafka-python refuses to send it
def test_a_header_may_have_no_value(bootstrap, topic, client, writer):
    bare = Sent(b"x", headers=(("none", None), ("empty", b"")))
    CLIENTS[writer](bootstrap).produce(topic, [bare])
    assert [content(record) for record in client.consume(topic, 1)] == [content(bare)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_of_several_megabytes_comes_back_whole(client, new_topic, codec):
    topic = new_topic(**{"max.message.bytes": str(8 * 1024 * 1024)})
    # A third of it incompressible by accident of digits, so that no codec hides the size of the frame.
    value = b"".join(b"%d" % (number * 2654435761 % 2**32) for number in range(500_000))
    assert len(value) > 4 * 1024 * 1024
    client.produce(topic, [Sent(b"before"), Sent(value), Sent(b"after")], codec=codec, batched=False)
    assert [record.value for record in client.consume(topic, 3)] == [b"before", value, b"after"]


def test_a_record_over_the_limit_of_the_topic_is_refused_and_the_next_is_taken(client, new_topic):
    topic = new_topic(**{"max.message.bytes": "2000"})
    with pytest.raises(Exception, match=r"(?i)too.?large|MSG_SIZE_TOO_LARGE"):
        client.produce(topic, [Sent(bytes(5000))])
    assert client.produce(topic, [Sent(b"small enough")]) == [0]


def test_append_time_replaces_what_the_client_said(client, new_topic):
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    client.produce(topic, [Sent(b"1", timestamp_ms=A_TIME_MS), Sent(b"2", timestamp_ms=A_TIME_MS)])
    after_ms = int(time.time() * 1000)
    for record in client.consume(topic, 2):
        assert record.timestamp_type == LOG_APPEND_TIME
        assert before_ms <= record.timestamp_ms <= after_ms


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_consumer_may_begin_at_any_offset_also_inside_a_batch(client, topic, codec):
    client.produce(topic, [Sent(b"%d" % number) for number in range(100)], codec=codec)
    for offset in (0, 1, 57, 99):
        read = client.consume(topic, 100 - offset, offset=offset)
        assert [record.value for record in read] == [b"%d" % number for number in range(offset, 100)]


def test_each_partition_counts_for_itself(client, new_topic):
    topic = new_topic(partitions=3)
    records = [Sent(b"%d" % number, partition=number % 3) for number in range(30)]
    client.produce(topic, records)
    for partition in range(3):
        read = client.consume(topic, 10, partition=partition)
        assert [(record.offset, record.value) for record in read] == [
            (place, b"%d" % (place * 3 + partition)) for place in range(10)
        ]
        assert client.offsets(topic, partition) == (0, 10)


def test_an_idempotent_producer_delivers_each_record_once_and_in_order(client, topic):
    values = [b"%d" % number for number in range(500)]
    offsets = client.produce(topic, [Sent(value) for value in values], idempotent=True, batched=False)
    assert all(earlier < later for earlier, later in pairwise(offsets))
    assert [record.value for record in client.consume(topic, 500)] == values
    assert client.offsets(topic) == (0, 500)


def test_offsets_are_found_by_time(client, topic):
    times = [A_TIME_MS, A_TIME_MS + 1000, A_TIME_MS + 1000, A_TIME_MS + 5000]
    for timestamp_ms in times:
        client.produce(topic, [Sent(b"x", timestamp_ms=timestamp_ms)])
    assert client.offset_at(topic, 0) == 0
    assert client.offset_at(topic, A_TIME_MS) == 0
    assert client.offset_at(topic, A_TIME_MS + 1) == 1
    assert client.offset_at(topic, A_TIME_MS + 1000) == 1
    assert client.offset_at(topic, A_TIME_MS + 1001) == 3
    assert client.offset_at(topic, A_TIME_MS + 5000) == 3


def test_a_time_inside_a_compressed_batch_finds_its_record(client, topic):
    records = [Sent(b"x", timestamp_ms=A_TIME_MS + 10 * number) for number in range(50)]
    client.produce(topic, records, codec="gzip")
    for number in (0, 1, 25, 49):
        assert client.offset_at(topic, A_TIME_MS + 10 * number - 5) == number


def test_an_empty_partition_begins_and_ends_at_zero(client, topic):
    assert client.offsets(topic) == (0, 0)


def test_a_waiting_consumer_gets_what_is_produced_later(client, topic):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(client.consume, topic, 2)
        client.produce(topic, [Sent(b"first")])
        client.produce(topic, [Sent(b"second")])
        assert [record.value for record in reading.result()] == [b"first", b"second"]
