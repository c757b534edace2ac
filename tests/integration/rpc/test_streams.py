"""Streams that produce and streams that consume: order, acks, groups, and clients that do not keep up."""

import os
import random
import threading
import time

import grpc
import psutil
import pytest
from confluent_kafka import Consumer

from headrace.api.grpc.clients import CONSUME_STREAMS_MAX
from headrace.rpc import headrace_pb2 as pb
from tests.integration.rpc.kit import (
    TIMEOUT_S,
    Rpc,
    Sender,
    connected,
    read_values,
    records,
    refusal_of,
    subscribe,
    values_of,
)
from tests.patience import awaited

Status = grpc.StatusCode


def produce_all(rpc: Rpc, requests) -> list[pb.ProduceAck]:
    return list(rpc.broker.StreamProduce(iter(requests), timeout=TIMEOUT_S))


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def test_every_request_is_acked_in_its_order_and_lies_in_its_order(rpc: Rpc, topic):
    requests = [pb.ProduceRequest(topic=topic, partition=0, records=records(*[b"%d" % n] * 20)) for n in range(300)]
    acks = produce_all(rpc, requests)
    assert [ack.index for ack in acks] == list(range(300))
    assert [offset for ack in acks for offset in ack.offsets] == list(range(6000))
    stream = rpc.broker.StreamConsume(iter([subscribe(assign=[pb.StartAt(topic=topic, offset=-2)])]))
    assert read_values(stream, 6000) == [b"%d" % n for n in range(300) for _ in range(20)]
    stream.cancel()


def test_records_with_headers_keep_their_place_among_those_without(rpc: Rpc, topic):
    mixed = [pb.Record(value=b"%d" % n, headers=[pb.Header(name="h")] if n % 3 == 0 else []) for n in range(50)]
    (ack,) = produce_all(rpc, [pb.ProduceRequest(topic=topic, partition=0, records=mixed)])
    assert list(ack.offsets) == list(range(50))
    got = rpc.broker.Fetch(pb.FetchRequest(topic=topic)).records
    assert [(r.value, len(r.headers)) for r in got] == [(b"%d" % n, int(n % 3 == 0)) for n in range(50)]


def test_a_request_that_fails_fails_alone(rpc: Rpc, topic):
    good = pb.ProduceRequest(topic=topic, records=records(b"x"))
    large = random.Random(1).randbytes(2_000_000)  # larger than the topic allows, also when it is compressed
    big = pb.ProduceRequest(topic=topic, records=[pb.Record(value=b"a"), pb.Record(value=large)])
    acks = produce_all(
        rpc,
        [
            good,
            pb.ProduceRequest(topic="no-such-topic", records=records(b"x")),
            pb.ProduceRequest(topic=topic),
            pb.ProduceRequest(topic=topic, partition=9, records=records(b"x")),
            pb.ProduceRequest(topic=topic, partition=-1, records=records(b"x")),
            pb.ProduceRequest(topic=topic, partition=0, record_batch=b"no batch"),
            big,
            good,
        ],
    )
    assert [ack.failure.reason for ack in acks] == [
        "",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_REQUEST",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_REQUEST",
        "CORRUPT_MESSAGE",
        "MESSAGE_TOO_LARGE",
        "",
    ]
    assert list(acks[6].offsets) == [1, -1]
    assert list(acks[7].offsets) == [2]


def test_a_topic_is_said_once(rpc: Rpc, topic):
    acks = produce_all(rpc, [pb.ProduceRequest(topic=topic if n == 0 else "", records=records(b"x")) for n in range(5)])
    assert [list(ack.offsets) for ack in acks] == [[0], [1], [2], [3], [4]]


# gRPC's clients else take in megabytes of acks that nobody has asked for yet.
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))


def test_a_client_that_reads_no_acks_is_stopped_and_costs_no_memory(broker, rpc: Rpc, topic):
    (server,) = [one for one in psutil.Process(broker.pid).children() if "headrace.app.grpc_process" in one.cmdline()]
    sent = threading.Semaphore(0)
    request = pb.ProduceRequest(topic=topic, partition=0, records=records(*[b"x" * 1000] * 100))
    total = 5_000  # half a gigabyte

    def requests():
        for _ in range(total):
            yield request
            sent.release()

    before = server.memory_info().rss
    with connected(broker.grpc_address, *SMALL_WINDOW) as own:
        stream = own.broker.StreamProduce(requests())
        count = 0
        while sent.acquire(timeout=1):  # until nothing moves any more
            count += 1
        assert count < total
        assert server.memory_info().rss - before < 200 * 1024 * 1024
        acks = [next(stream) for _ in range(count)]  # and now the client reads: everything moves again
        assert [ack.index for ack in acks] == list(range(count))
        assert not [ack.failure for ack in acks if ack.HasField("failure")]
        assert sent.acquire(timeout=TIMEOUT_S)
        stream.cancel()


# Consuming


def test_a_stream_is_a_member_beside_kafka_consumers(broker, rpc: Rpc, make_topic, group):
    topic = make_topic(partitions=4)
    stream = rpc.broker.StreamConsume(iter([subscribe(group_id=group, topics=[topic])]), timeout=TIMEOUT_S)
    assert list(next(stream).assignment.partitions) == [pb.TopicPartitions(topic=topic, partitions=[0, 1, 2, 3])]
    kafka = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
        }
    )
    kafka.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while len(kafka.assignment()) != 2 and time.monotonic() < deadline:
        kafka.poll(0.1)
    theirs = {one.partition for one in kafka.assignment()}
    mine = next(event for event in stream if event.assignment.partitions).assignment.partitions[0].partitions
    assert sorted([*mine, *theirs]) == [0, 1, 2, 3]
    for partition in range(4):
        rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=partition, records=records(b"%d" % partition)))
    got = read_values(stream, 2)
    assert {int(value) for value in got} == set(mine)
    messages = [kafka.poll(TIMEOUT_S) for _ in range(2)]
    assert [message.error() for message in messages] == [None, None]
    assert {int(message.value()) for message in messages} == theirs
    stream.cancel()
    kafka.close()


def test_what_was_committed_is_not_sent_to_the_next_stream(rpc: Rpc, topic, group):
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(*numbered(100))))
    sender = Sender()
    sender.send(subscribe(group_id=group, topics=[topic], max_records=10))
    stream = rpc.broker.StreamConsume(iter(sender), timeout=TIMEOUT_S)
    assert read_values(stream, 100) == numbered(100)
    sender.send(pb.StreamConsumeRequest(commit=pb.Commit(offsets=[pb.PartitionOffset(topic=topic, offset=40)])))
    assert committed_by(stream) == [pb.PartitionOffset(topic=topic, offset=40)]
    stream.cancel()
    sender.finish()
    wait_for_empty(rpc, group)

    sender = Sender()
    sender.send(subscribe(group_id=group, topics=[topic]))
    stream = rpc.broker.StreamConsume(iter(sender), timeout=TIMEOUT_S)
    (event,) = events_with(stream, 60)
    assert values_of(event) == numbered(100)[40:]
    sender.send(pb.StreamConsumeRequest(commit=pb.Commit(number=event.records.number)))
    assert committed_by(stream) == [pb.PartitionOffset(topic=topic, offset=100)]
    assert committed(rpc, topic, group) == 100
    stream.cancel()
    sender.finish()


def committed_by(stream) -> list[pb.PartitionOffset]:
    """The offsets of the next response to a commit, which must have succeeded."""
    event = next(event.committed for event in stream if event.WhichOneof("event") == "committed")
    assert not event.HasField("failure"), event.failure
    return list(event.offsets)


def events_with(stream, count: int) -> list[pb.StreamConsumeResponse]:
    """Records events, until they hold so many records."""
    events: list[pb.StreamConsumeResponse] = []
    while sum(len(values_of(event)) for event in events) < count:
        events += [event for event in [next(stream)] if event.WhichOneof("event") == "records"]
    return events


def wait_for_empty(rpc: Rpc, group: str) -> None:
    """Until the last stream's member has left: a rebalance of the next stream's would refuse its commits by number, and
    send again what it has not committed."""
    asked = pb.DescribeGroupRequest(group_id=group)
    awaited(lambda: rpc.admin.DescribeGroup(asked).state, lambda state: state == "Empty", "it is empty", TIMEOUT_S)


def committed(rpc: Rpc, topic: str, group: str) -> int:
    return rpc.broker.FetchOffset(pb.FetchOffsetRequest(group_id=group, topic=topic)).offset


@pytest.mark.parametrize("received", [1, 3, 10])
def test_auto_commit_covers_acknowledged_records_only(rpc: Rpc, topic, group, received):
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(*numbered(10))))
    sender = Sender()
    sender.send(subscribe(group_id=group, topics=[topic], auto_commit=True, max_records=1))
    stream = rpc.broker.StreamConsume(iter(sender))
    events = events_with(stream, received)
    sender.send(pb.StreamConsumeRequest(acknowledge=pb.Acknowledge(number=events[-1].records.number)))
    awaited(lambda: committed(rpc, topic, group), lambda offset: offset == received, "it is committed", TIMEOUT_S)
    stream.cancel()
    sender.finish()
    wait_for_empty(rpc, group)
    again = rpc.broker.StreamConsume(iter([subscribe(group_id=group, topics=[topic])]), timeout=TIMEOUT_S)
    if received < 10:
        assert read_values(again, 10 - received) == numbered(10)[received:]
    again.cancel()
    assert committed(rpc, topic, group) == received


@pytest.mark.parametrize("auto_commit", [True, False])
def test_client_that_dies_anywhere_misses_no_record(rpc: Rpc, topic, group, auto_commit):
    """It processes some of what it receives, names some of that, and is gone; the next one goes on."""
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(*numbered(40))))
    dice = random.Random(3)
    processed = -1  # the last record of which all before it have been processed
    while processed < 39:
        sender = Sender()
        sender.send(subscribe(group_id=group, topics=[topic], auto_commit=auto_commit, max_records=3))
        stream = rpc.broker.StreamConsume(iter(sender), timeout=TIMEOUT_S)
        named = 0
        for event in events_with(stream, min(dice.randrange(5, 20), 39 - processed)):
            if named and dice.random() < 0.2:
                break  # the rest was received, and never processed
            offsets = offsets_of(event)
            assert offsets[0] <= processed + 1, "a record is missing"
            processed, named = max(processed, offsets[-1]), offsets[-1] + 1
            number = event.records.number
            if auto_commit:
                sender.send(pb.StreamConsumeRequest(acknowledge=pb.Acknowledge(number=number)))
            else:
                sender.send(pb.StreamConsumeRequest(commit=pb.Commit(number=number)))
        if dice.random() < 0.7:  # else it dies while what it has named is on its way
            awaited(lambda: committed(rpc, topic, group), lambda at: at >= named, "it is committed", TIMEOUT_S)  # noqa: B023
        stream.cancel()
        sender.finish()
        wait_for_empty(rpc, group)
        assert committed(rpc, topic, group) <= processed + 1


def test_auto_commit_without_acknowledgement_commits_nothing(rpc: Rpc, topic, group):
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(*numbered(100))))
    stream = rpc.broker.StreamConsume(iter([subscribe(group_id=group, topics=[topic], auto_commit=True)]))
    assert read_values(stream, 100) == numbered(100)
    # A fetch that waits at the end of the topic: longer than the interval of commits.
    rpc.broker.Fetch(pb.FetchRequest(topic=topic, offset=100, max_wait_ms=3_000))
    assert committed(rpc, topic, group) == -1
    stream.cancel()
    wait_for_empty(rpc, group)
    again = rpc.broker.StreamConsume(iter([subscribe(group_id=group, topics=[topic])]), timeout=TIMEOUT_S)
    assert read_values(again, 100) == numbered(100)
    again.cancel()


def test_commit_that_names_nothing_fails(rpc: Rpc, topic, group):
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(b"x")))
    sender = Sender()
    sender.send(subscribe(group_id=group, topics=[topic]))
    stream = rpc.broker.StreamConsume(iter(sender), timeout=TIMEOUT_S)
    events_with(stream, 1)
    sender.send(pb.StreamConsumeRequest(commit=pb.Commit()))
    answer = next(event.committed for event in stream if event.WhichOneof("event") == "committed")
    assert answer.failure.reason == "INVALID_REQUEST"
    assert committed(rpc, topic, group) == -1
    stream.cancel()
    sender.finish()


def test_late_stream_gets_all_that_follows_its_assignment(rpc: Rpc, make_topic, group):
    topic = make_topic(partitions=3)
    stream = rpc.broker.StreamConsume(
        iter([subscribe(group_id=group, topics=[topic], offset_reset=pb.LATEST)]), timeout=TIMEOUT_S
    )
    assert next(stream).assignment.partitions
    for partition in range(3):
        rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=partition, records=records(b"%d" % partition)))
    assert sorted(read_values(stream, 3)) == [b"0", b"1", b"2"]
    stream.cancel()


def test_large_records_come_alone_and_small_ones_together(rpc: Rpc, topic):
    sent = [b"a", b"x" * 900_000, b"y" * 900_000, b"b", b"c"]
    for value in sent:
        rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(value)))
    stream = rpc.broker.StreamConsume(iter([subscribe(assign=[pb.StartAt(topic=topic, offset=-2)])]))
    events, got = [], []
    while len(got) < 5:
        events.append(next(stream))
        got += values_of(events[-1])
    assert got == sent
    assert all(event.ByteSize() < 2_000_000 for event in events)
    stream.cancel()


def test_a_client_that_does_not_read_costs_little_and_loses_nothing(broker, rpc: Rpc, topic):
    (server,) = [one for one in psutil.Process(broker.pid).children() if "headrace.app.grpc_process" in one.cmdline()]
    count = 15_000  # of 10 kB each: bytes that would be seen, in few records
    batch = records(*[os.urandom(10_000) for _ in range(100)])
    acks = produce_all(rpc, [pb.ProduceRequest(topic=topic, partition=0, records=batch) for _ in range(count // 100)])
    assert not [ack.failure for ack in acks if ack.HasField("failure")]
    before = server.memory_info().rss
    with connected(broker.grpc_address) as own:
        stream = own.broker.StreamConsume(iter([subscribe(assign=[pb.StartAt(topic=topic, offset=-2)])]))
        offsets = offsets_of(next(stream))
        for _ in range(15):  # long enough to read all of it
            time.sleep(0.1)
            assert server.memory_info().rss - before < 100 * 1024 * 1024
        while len(offsets) < count:
            offsets += offsets_of(next(stream))
        assert offsets == list(range(count))
        stream.cancel()


def offsets_of(event: pb.StreamConsumeResponse) -> list[int]:
    return [record.offset for part in event.records.partitions for record in part.records]


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (pb.StreamConsumeRequest(), Status.INVALID_ARGUMENT, "first request"),
        (pb.StreamConsumeRequest(commit=pb.Commit()), Status.INVALID_ARGUMENT, "first request"),
        (subscribe(topics=["t"]), Status.INVALID_ARGUMENT, "group_id is missing"),
        (subscribe(group_id="g"), Status.INVALID_ARGUMENT, "topics"),
        (subscribe(group_id="g", topics=["none"]), Status.NOT_FOUND, "no topic none"),
        (subscribe(assign=[pb.StartAt(topic="none")]), Status.NOT_FOUND, "no topic none"),
        (subscribe(group_id="g", topics=["t"], max_records=-1), Status.NOT_FOUND, "no topic t"),
        (subscribe(assign=[pb.StartAt(topic="t", partition=-1)]), Status.INVALID_ARGUMENT, "partition is -1"),
        (subscribe(assign=[pb.StartAt(topic="t", offset=-3)]), Status.INVALID_ARGUMENT, "offset is -3"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(rpc: Rpc, request_, status, words):
    with pytest.raises(grpc.RpcError) as caught:
        next(rpc.broker.StreamConsume(iter([request_]), timeout=TIMEOUT_S))
    refusal = refusal_of(caught.value)
    assert refusal.status is status
    assert words in refusal.message


def test_refused_subscriptions_leave_room_for_others(rpc: Rpc, topic):
    for _ in range(CONSUME_STREAMS_MAX + 1):
        with pytest.raises(grpc.RpcError) as caught:
            next(rpc.broker.StreamConsume(iter([subscribe(group_id="g", topics=[topic], max_records=10_001)])))
        assert refusal_of(caught.value).message == "max_records is 10001; it may be 0 to 10000"
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(b"x")), timeout=TIMEOUT_S)
    stream = rpc.broker.StreamConsume(iter([subscribe(assign=[pb.StartAt(topic=topic, offset=-2)])]), timeout=TIMEOUT_S)
    assert read_values(stream, 1) == [b"x"]
    stream.cancel()


def test_streams_whose_topic_is_deleted_end_with_its_status(rpc: Rpc, topic):
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(b"x")), timeout=TIMEOUT_S)
    requests = [
        subscribe(topics=[topic], group_id=f"{topic}-g"),
        subscribe(assign=[pb.StartAt(topic=topic, offset=-2)]),
    ]
    streams = [rpc.broker.StreamConsume(iter([request]), timeout=TIMEOUT_S) for request in requests]
    for stream in streams:
        assert read_values(stream, 1) == [b"x"]
    rpc.admin.DeleteTopic(pb.DeleteTopicRequest(name=topic), timeout=TIMEOUT_S)
    for stream in streams:
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        refusal = refusal_of(caught.value)
        assert (refusal.status, refusal.reason) == (Status.NOT_FOUND, "UNKNOWN_TOPIC_OR_PARTITION")
