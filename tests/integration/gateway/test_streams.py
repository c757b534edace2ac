"""What streams of events guarantee to clients that stop reading, hang up anywhere, and connect again."""

import itertools
import json
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.testing import LocalBroker
from tests.integration.gateway.conftest import make_topic
from tests.integration.gateway.test_groups import WAIT_S, events, fill, parsed, take, values_of
from tests.patience import awaited, until

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True, settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture
def group() -> str:
    return f"g-{next(_numbers)}"


@pytest.fixture
def group_url(broker: LocalBroker, group: str) -> Callable[..., str]:
    def url(topic: str, **params: object) -> str:
        more = "".join(f"&{name}={value}" for name, value in params.items())
        return f"{broker.http_url}/api/v1/groups/{group}/stream?topic={topic}{more}"

    return url


def committed(rest: httpx.Client, group: str, topic: str, partition: int = 0) -> int | None:
    rows = rest.get(f"/consumers/{group}/offsets", params={"topic": topic}).json()["offsets"]
    found = {row["partition"]: row["offset"] for row in rows}
    return found.get(partition)


def put(rest: httpx.Client, topic: str, partition: int, *values: str) -> None:
    body = {"messages": [{"value": value, "partition": partition} for value in values]}
    rest.post(f"/topics/{topic}/messages", json=body).raise_for_status()


def next_assigned(stream: Iterator[dict[str, str]], partitions: list[int]) -> dict[str, str]:
    return next(
        event
        for event in stream
        if event.get("event") == "assigned" and [row["partition"] for row in json.loads(event["data"])] == partitions
    )


# Streams of a group: what is committed


def test_group_stream_commits_nothing_unacknowledged(rest, topic, group, group_url):
    values = fill(rest, topic, 3_000)
    with httpx.stream("GET", group_url(topic), timeout=WAIT_S) as answer:
        stream = parsed(answer.iter_lines())
        take(stream, 1)  # and then reads no more
        # A read that waits at the end of the topic: long enough for a gateway that commits by itself.
        rest.get(f"/topics/{topic}/partitions/0/messages", params={"offset": 3_000, "wait_ms": 4_000})
        assert committed(rest, group, topic) is None
    with events(group_url(topic)) as stream:
        assert values_of(take(stream, 3_000)) == values


def test_last_event_id_acknowledges_what_came_before_it(rest, topic, group, group_url):
    fill(rest, topic, 6)
    with events(group_url(topic)) as stream:
        seen = take(stream, 6)
    with events(group_url(topic), last_event_id=seen[2]["id"]):
        awaited(lambda: committed(rest, group, topic), lambda at: at == 3, "the id is committed", WAIT_S)
    with events(group_url(topic)) as stream:
        assert values_of(take(stream, 3)) == ["v3", "v4", "v5"]


def test_client_acknowledges_events_as_a_consumer(rest, topic, group, group_url):
    fill(rest, topic, 4)
    consumer = f"/api/v1/groups/{group}/consumers/reader-1"
    with httpx.stream("GET", group_url(topic, id="reader-1"), timeout=WAIT_S) as answer:
        assert answer.headers["headrace-consumer"] == "reader-1"
        stream = parsed(answer.iter_lines())
        seen = take(stream, 4)
        done = rest.post(f"{consumer}/offsets", json={"event_id": seen[2]["id"]})
        assert done.json() == {"offsets": [{"topic": topic, "partition": 0, "offset": 3}]}
        late = rest.post(f"{consumer}/offsets", json={"event_id": seen[0]["id"]})
        assert late.json() == {"offsets": []}, "an acknowledgement takes nothing back"
        assert committed(rest, group, topic) == 3
        assert rest.post(f"{consumer}/offsets", json={}).status_code == 422
        assert rest.post(f"{consumer}/offsets", json={"event_id": "x"}).status_code == 422
        assert rest.get(f"{consumer}/messages").status_code == 409
    until(lambda: rest.post(f"{consumer}/offsets", json={}).status_code == 404, "the consumer has left", WAIT_S)


def test_stream_takes_the_place_of_its_consumers_old_one(rest, topic, group_url):
    with events(group_url(topic, id="a")) as old, events(group_url(topic, id="a")) as new:
        last = list(old)[-1]
        assert (last["event"], json.loads(last["data"])["status"]) == ("problem", 409)
        fill(rest, topic, 1)
        assert values_of(take(new, 1)) == ["v0"]


def test_deleting_a_streams_consumer_ends_the_stream(rest, topic, group, group_url):
    with events(group_url(topic, id="a")) as stream:
        assert next(stream)["event"] == "assigned"
        assert rest.delete(f"/api/v1/groups/{group}/consumers/a").status_code == 200
        assert list(stream)[-1]["event"] == "problem"


# Streams of a group: reconnecting among other members


@pytest.fixture
def kafka(broker: LocalBroker, group: str) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False, "partition.assignment.strategy": "range"})
    yield consumer
    with suppress(RuntimeError):  # closed already
        consumer.close()


def has_partitions(kafka: Consumer, count: int) -> bool:
    kafka.poll(0.1)
    return len(kafka.assignment()) == count


def test_stream_with_a_request_behind_it_ends_with_its_connection(broker, rest, topic, group, group_url):
    """The request behind waits for the stream, and the stream for its client to hang up."""
    place = urlsplit(group_url(topic))
    head = f" HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=WAIT_S) as connection:
        connection.sendall(f"GET {place.path}?{place.query}{head}GET /health{head}".encode())
        until(lambda: rest.get(f"/api/v1/groups/{group}/consumers").json()["consumers"], "it has joined", WAIT_S)
    until(lambda: rest.get(f"/api/v1/groups/{group}/consumers").json()["consumers"] == [], "it has left", WAIT_S)


def test_last_event_id_never_rewinds_another_members_commit(rest, group, group_url, kafka):
    topic = make_topic(rest, partitions=2)
    for partition in (0, 1):
        put(rest, topic, partition, *(f"{partition}-{number}" for number in range(10)))
    with events(group_url(topic)) as stream:
        seen = take(stream, 20)
    old = f"{topic}:0:2,2"  # as a client remembers it that has processed two of each
    assert seen[-1]["id"] == f"{topic}:0:10,10"
    kafka.subscribe([topic])
    until(lambda: has_partitions(kafka, 2), "the stream's member has left", WAIT_S)
    with events(group_url(topic), last_event_id=old) as stream:
        until(lambda: has_partitions(kafka, 1), "each has a partition", WAIT_S)
        (theirs,) = [one.partition for one in kafka.assignment()]
        mine = 1 - theirs
        next_assigned(stream, [mine])
        (row,) = kafka.commit(offsets=[TopicPartition(topic, theirs, 9)], asynchronous=False)
        assert row.error is None
        kafka.close()
        next_assigned(stream, [0, 1])
        put(rest, topic, theirs, "end")
        found = [json.loads(event["data"]) for event in take(stream, 2)]
        while found[-1]["value"] != "end":
            found += [json.loads(event["data"]) for event in take(stream, 1)]
    assert [row["offset"] for row in found if row["partition"] == theirs] == [9, 10], "neither rewound nor repeated"
    assert committed(rest, group, topic, theirs) == 9


def test_stream_goes_on_where_it_was_after_a_rebalance(rest, group_url, kafka):
    topic = make_topic(rest, partitions=2)
    for partition in (0, 1):
        put(rest, topic, partition, "a", "b")
    with events(group_url(topic)) as stream:
        take(stream, 4)
        kafka.subscribe([topic])
        until(lambda: has_partitions(kafka, 1), "each has a partition", WAIT_S)
        kafka.close()
        next_assigned(stream, [0, 1])
        for partition in (0, 1):
            put(rest, topic, partition, "c")
        assert values_of(take(stream, 2)) == ["c", "c"], "what was sent on this connection is not sent again"


def test_late_group_misses_nothing_while_it_is_away(rest, topic, group_url):
    fill(rest, topic, 2)
    with events(group_url(topic, offset_reset="latest")) as stream:
        assert next(stream)["event"] == "assigned"
    missed = fill(rest, topic, 2, first=2)
    with events(group_url(topic, offset_reset="latest")) as stream:
        assert values_of(take(stream, 2)) == missed


def test_id_from_before_a_topic_was_recreated_skips_nothing(rest, topic, group, group_url):
    values = fill(rest, topic, 3)
    with events(group_url(topic), last_event_id=f"{topic}:0:1000") as stream:
        assert values_of(take(stream, 3)) == values
    assert committed(rest, group, topic) is None


# Streams of a topic


def test_topic_stream_sends_all_that_follows_its_response(broker, rest):
    topic = make_topic(rest, partitions=4)
    for number in range(5):
        with httpx.stream("GET", f"{broker.http_url}/api/v1/topics/{topic}/stream", timeout=WAIT_S) as answer:
            for partition in range(4):
                put(rest, topic, partition, f"{number}-{partition}")
            found = values_of(take(parsed(answer.iter_lines()), 4))
            assert sorted(found) == [f"{number}-{partition}" for partition in range(4)]


def test_topic_stream_goes_on_in_partitions_without_an_event(broker, rest):
    topic = make_topic(rest, partitions=3)
    url = f"{broker.http_url}/api/v1/topics/{topic}/stream"
    with events(url) as stream:
        assigned = next(stream)
        assert assigned["event"] == "assigned"
        put(rest, topic, 1, "a")
        (event,) = take(stream, 1)
    for partition in range(3):
        put(rest, topic, partition, f"b{partition}")
    with events(url, last_event_id=event["id"]) as stream:
        assert sorted(values_of(take(stream, 3))) == ["b0", "b1", "b2"]
    with events(url, last_event_id=assigned["id"]) as stream:
        assert sorted(values_of(take(stream, 4))) == ["a", "b0", "b1", "b2"]


def test_topic_stream_reads_partitions_that_are_added(broker, rest, topic):
    with events(f"{broker.http_url}/api/v1/topics/{topic}/stream") as stream:
        before = next(stream)
        rest.post(f"/api/v1/topics/{topic}/partitions", json={"partitions": 2}).raise_for_status()
        put(rest, topic, 1, "new")
        assert values_of(take(stream, 1)) == ["new"]
    with events(f"{broker.http_url}/api/v1/topics/{topic}/stream", last_event_id=before["id"]) as stream:
        assert values_of(take(stream, 1)) == ["new"]


def test_topic_stream_behind_deleted_records_goes_on_at_the_first(broker, rest, topic):
    fill(rest, topic, 5)
    wanted = {"partitions": [{"partition": 0, "before_offset": 3}]}
    rest.post(f"/api/v1/topics/{topic}/delete-records", json=wanted).raise_for_status()
    with events(f"{broker.http_url}/api/v1/topics/{topic}/stream", last_event_id=f"{topic}:0:1") as stream:
        assert values_of(take(stream, 2)) == ["v3", "v4"]


def test_topic_stream_refuses_the_id_of_another_topic(rest, topic):
    answer = rest.get(f"/api/v1/topics/{topic}/stream", headers={"last-event-id": "other:0:1"})
    assert answer.status_code == 422


# Both


def test_ids_fit_into_a_request_with_800_partitions(broker, rest, group_url):
    topic = make_topic(rest, partitions=800)
    body = {"messages": [{"value": "x", "partition": partition} for partition in range(800)]}
    rest.post(f"/topics/{topic}/messages", json=body).raise_for_status()
    of_topic = f"{broker.http_url}/api/v1/topics/{topic}/stream?offset_reset=earliest"
    for url, bytes_max in ((group_url(topic), 2_048), (of_topic, 4_096)):
        with events(url) as stream:
            seen = take(stream, 800)
        assert max(len(event["id"]) for event in seen) <= bytes_max
        with events(url, last_event_id=seen[-1]["id"]) as stream:
            assert next(stream)["event"] == "assigned"


class Cut(Exception):
    pass


def lines_until(answer: httpx.Response, bytes_max: int) -> Iterator[str]:
    """Of what comes, up to a byte: the client hangs up there."""
    rest, left = b"", bytes_max
    for piece in answer.iter_raw():
        part, left = piece[:left], left - len(piece)
        *lines, rest = (rest + part).split(b"\n")
        yield from (line.decode() for line in lines)
        if left <= 0:
            raise Cut


@pytest.mark.parametrize("of_group", [True, False])
def test_stream_cut_at_any_byte_goes_on_without_a_gap(broker, rest, group_url, of_group):
    topic = make_topic(rest, partitions=3)
    expected = {(partition, number) for partition in range(3) for number in range(40)}
    for partition in range(3):
        put(rest, topic, partition, *(str(number) for number in range(40)))
    url = group_url(topic) if of_group else f"{broker.http_url}/api/v1/topics/{topic}/stream?offset_reset=earliest"
    dice = random.Random(5)
    found: list[tuple[int, int]] = []
    last_id = ""
    while len(found) < len(expected):
        headers = {"last-event-id": last_id} if last_id else {}
        with httpx.stream("GET", url, headers=headers, timeout=WAIT_S) as answer:
            assert answer.status_code == 200
            try:
                for event in parsed(lines_until(answer, dice.randrange(100, 4_000))):
                    last_id = event.get("id", last_id)
                    if event.get("event", "message") == "message":
                        row = json.loads(event["data"])
                        found.append((row["partition"], int(row["value"])))
                    if len(found) == len(expected):
                        break
            except Cut:
                continue
    assert set(found) == expected, "with as many events as records: nothing is missing, nothing is repeated"
