"""Groups over REST: consumers that share a group with Kafka clients, live streams, lag, resets, rebalances."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from confluent_kafka import Consumer

from headrace.api.rest.sse import event_id, parse_event_id
from headrace.testing import LocalBroker
from tests.integration.gateway.conftest import make_topic

WAIT_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True, settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


def fill(rest: httpx.Client, topic: str, count: int, first: int = 0) -> list[str]:
    values = [f"v{number}" for number in range(first, first + count)]
    body = {"messages": [{"key": value, "value": value} for value in values]}
    rest.post(f"/topics/{topic}/messages", json=body).raise_for_status()
    return values


def join(rest: httpx.Client, group: str, topic: str, **more: object) -> str:
    answer = rest.post(f"/api/v1/groups/{group}/consumers", json={"topics": [topic], **more})
    assert answer.status_code == 201, answer.text
    return f"/api/v1/groups/{group}/consumers/{answer.json()['consumer']}"


def poll_until(rest: httpx.Client, consumer: str, count: int) -> list[str]:
    values: list[str] = []
    deadline = time.monotonic() + WAIT_S
    while len(values) < count and time.monotonic() < deadline:
        answer = rest.get(f"{consumer}/messages", params={"wait_ms": 5_000})
        assert answer.status_code == 200, answer.text
        values += [one["value"] for one in answer.json()["messages"]]
    return values


def test_a_consumer_joins_polls_commits_and_leaves(rest, topic):
    values = fill(rest, topic, 5)
    consumer = join(rest, "g-life", topic)
    assert poll_until(rest, consumer, 5) == values
    assert rest.post(f"{consumer}/offsets", json={}).json() == {
        "offsets": [{"topic": topic, "partition": 0, "offset": 5}]
    }
    assert rest.delete(consumer).status_code == 200
    assert rest.get(f"{consumer}/messages").status_code == 404
    later = fill(rest, topic, 2, first=5)
    assert poll_until(rest, join(rest, "g-life", topic), 2) == later, "another goes on where the first has committed"


def test_what_was_not_committed_comes_again(rest, topic):
    values = fill(rest, topic, 3)
    consumer = join(rest, "g-again", topic)
    assert poll_until(rest, consumer, 3) == values
    offsets = [{"topic": topic, "partition": 0, "offset": 1}]
    rest.post(f"{consumer}/offsets", json={"offsets": offsets}).raise_for_status()
    rest.delete(consumer).raise_for_status()
    assert poll_until(rest, join(rest, "g-again", topic), 2) == values[1:]


def test_a_consumer_shares_a_group_with_a_kafka_client(broker, rest):
    topic = make_topic(rest, partitions=4)
    http = join(rest, "g-shared", topic)
    kafka = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g-shared", "auto.offset.reset": "earliest"})
    kafka.subscribe([topic])
    try:
        deadline = time.monotonic() + WAIT_S
        mine: list[object] = []
        while time.monotonic() < deadline and not (len(kafka.assignment()) == 2 and len(mine) == 2):
            kafka.poll(0.1)
            mine = rest.get(f"{http}/messages", params={"wait_ms": 0}).json()["assigned"]
        assert len(mine) == 2
        assert len(kafka.assignment()) == 2
        foreign = kafka.assignment()[0].partition
        refused = rest.post(f"{http}/offsets", json={"offsets": [{"topic": topic, "partition": foreign, "offset": 0}]})
        assert refused.status_code == 409
    finally:
        kafka.close()
        rest.delete(http)


def test_a_silent_consumer_is_let_go(rest, topic):
    consumer = join(rest, "g-silent", topic, session_timeout_ms=6_000)
    deadline = time.monotonic() + WAIT_S
    group = consumer.rsplit("/", 1)[0]
    while rest.get(group).json()["consumers"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert rest.get(f"{consumer}/messages").json()["kafka_error"] == "UNKNOWN_MEMBER_ID"


def test_a_second_consumer_of_the_same_name_is_refused(rest, topic):
    join(rest, "g-name", topic, id="a")
    again = rest.post("/api/v1/groups/g-name/consumers", json={"topics": [topic], "id": "a"})
    assert again.status_code == 409


def test_a_group_that_is_full_takes_no_consumer_more():
    settings = {"group.initial.rebalance.delay.ms": "0", "group.max.size": "1"}
    with (
        LocalBroker(gateway=True, settings=settings) as small,
        httpx.Client(base_url=small.http_url, timeout=WAIT_S) as rest,
    ):
        topic = make_topic(rest)
        values = fill(rest, topic, 1)
        assert poll_until(rest, join(rest, "g-full", topic), 1) == values
        refused = rest.get(f"{join(rest, 'g-full', topic)}/messages", params={"wait_ms": 30_000})
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["kafka_error"] == "GROUP_MAX_SIZE_REACHED"


@contextmanager
def events(url: str, last_event_id: str | None = None) -> Iterator[Iterator[dict[str, str]]]:
    headers = {"last-event-id": last_event_id} if last_event_id is not None else {}
    with httpx.stream("GET", url, headers=headers, timeout=WAIT_S) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield parsed(answer.iter_lines())


def parsed(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    event: dict[str, str] = {}
    for line in lines:
        if not line and "data" in event:
            yield event
        if not line:
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def take(stream: Iterator[dict[str, str]], count: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for event in stream:
        if event.get("event", "message") == "message":
            found.append(event)
        if len(found) == count:
            break
    return found


def values_of(found: list[dict[str, str]]) -> list[str]:
    return [json.loads(event["data"])["value"] for event in found]


def test_a_stream_gives_what_is_there_and_what_comes(broker, rest, topic):
    first = fill(rest, topic, 2)
    with events(f"{broker.http_url}/api/v1/groups/g-stream/stream?topic={topic}") as stream:
        assert values_of(take(stream, 2)) == first
        later = fill(rest, topic, 2, first=2)
        assert values_of(take(stream, 2)) == later


def test_a_stream_goes_on_behind_the_last_event_that_was_seen(broker, rest, topic):
    values = fill(rest, topic, 6)
    url = f"{broker.http_url}/api/v1/groups/g-resume/stream?topic={topic}"
    with events(url) as stream:
        seen = take(stream, 6)
    assert values_of(seen) == values
    with events(url, last_event_id=seen[2]["id"]) as stream:
        assert values_of(take(stream, 3)) == values[3:], "also those that were sent and never seen"


def test_a_stream_without_a_group_shows_what_comes_from_now_on(broker, rest, topic):
    fill(rest, topic, 3)
    with events(f"{broker.http_url}/api/v1/topics/{topic}/stream") as stream:
        assert next(stream)["event"] == "assigned"
        # Being given the partition and having found its end are two steps: ask until something comes.
        stop = threading.Event()

        def keep_sending() -> None:
            while not stop.wait(0.2):
                rest.post(f"/topics/{topic}/messages", json={"value": "new"})

        sender = threading.Thread(target=keep_sending)
        sender.start()
        try:
            assert values_of(take(stream, 1)) == ["new"]
        finally:
            stop.set()
            sender.join()


def test_two_streams_of_a_group_share_its_partitions(broker, rest):
    topic = make_topic(rest, partitions=2)
    url = f"{broker.http_url}/api/v1/groups/g-two/stream?topic={topic}"
    with events(url) as one, events(url) as other:
        for stream in (one, other):
            for event in stream:
                if event.get("event") == "assigned" and len(json.loads(event["data"])) == 1:
                    break


def test_a_stream_that_ends_leaves_its_group(broker, rest, topic):
    with events(f"{broker.http_url}/api/v1/groups/g-left/stream?topic={topic}") as stream:
        assert next(stream)["event"] == "assigned"
        assert len(rest.get("/api/v1/groups/g-left").json()["members"]) == 1
    deadline = time.monotonic() + WAIT_S
    while rest.get("/api/v1/groups/g-left").json().get("members"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_stream_whose_topic_is_deleted_ends_with_a_word(broker, rest, topic):
    consumer = join(rest, "g-deleted-poll", topic)
    with events(f"{broker.http_url}/api/v1/groups/g-deleted/stream?topic={topic}") as stream:
        assert next(stream)["event"] == "assigned"
        assert rest.delete(f"/topics/{topic}").status_code in (200, 204)
        last = list(stream)[-1]
    assert last["event"] == "problem"
    problem = json.loads(last["data"])
    assert (problem["status"], problem["kafka_error"]) == (404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert "was deleted" in problem["detail"]
    polled = rest.get(f"{consumer}/messages", params={"wait_ms": 10_000})
    assert polled.status_code == 404
    assert polled.json()["kafka_error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_an_event_id_is_read_back():
    positions = {("a.b-c_d", 0): 7, ("a.b-c_d", 12): 2**40}
    assert parse_event_id(event_id(positions)) == positions


@pytest.mark.parametrize("text", ["x", "t:0", "t:0:-1", "t:a:1", ":0:1", "t:0:1:2", "t:0:99999999999999999999"])
def test_a_foreign_event_id_is_refused(rest, topic, text):
    answer = rest.get(f"/api/v1/topics/{topic}/stream", headers={"last-event-id": text})
    assert answer.status_code == 422


def test_lag_is_told_in_records_and_seconds(rest, topic):
    old_ms = int(time.time() * 1000) - 90_000
    for _ in range(4):
        rest.post(f"/topics/{topic}/messages", json={"value": "x", "timestamp": old_ms}).raise_for_status()
    rest.post("/consumers/g-lag/offsets", json={"topic_name": topic, "partition": 0, "offset": 1}).raise_for_status()
    (row,) = rest.get("/api/v1/groups/g-lag/lag").json()["offsets"]
    assert (row["committed"], row["end"], row["lag"]) == (1, 4, 3)
    assert row["lag_seconds"] >= 90
    described = rest.get("/api/v1/groups/g-lag").json()
    assert (described["state"], described["members"], described["lag"]) == ("Empty", [], 3)


def test_offsets_are_moved_only_while_nobody_reads(rest, topic):
    fill(rest, topic, 4)
    consumer = join(rest, "g-reset", topic)
    poll_until(rest, consumer, 4)
    rest.post(f"{consumer}/offsets", json={}).raise_for_status()
    wanted = {"topic_name": topic, "to": "earliest"}
    refused = rest.post("/api/v1/groups/g-reset/reset", json=wanted)
    assert (refused.status_code, refused.json()["kafka_error"]) == (409, "NON_EMPTY_GROUP")
    rest.delete(consumer).raise_for_status()
    dry = rest.post("/api/v1/groups/g-reset/reset", json={**wanted, "dry_run": True}).json()
    assert dry["offsets"] == [{"topic": topic, "partition": 0, "before": 4, "after": 0}]
    done = rest.post("/api/v1/groups/g-reset/reset", json={"by": -3}).json()
    assert (done["changed"], done["offsets"][0]["after"]) == (True, 1)
    assert rest.post("/api/v1/groups/g-reset/reset", json={"to": "latest", "by": 1}).status_code == 422


def test_rebalances_are_told_with_their_cause(rest, topic):
    consumer = join(rest, "g-why", topic)
    fill(rest, topic, 1)
    poll_until(rest, consumer, 1)
    rows = rest.get("/api/v1/groups/g-why/rebalances").json()["rebalances"]
    assert rows
    assert rows[0]["cause"]


def test_a_group_is_listed_and_deleted(rest, topic):
    rest.post("/consumers/g-gone/groups", json={"topic_name": topic}).raise_for_status()
    names = [row["group"] for row in rest.get("/api/v1/groups?limit=1000").json()["groups"]]
    assert "g-gone" in names
    assert rest.delete("/api/v1/groups/g-gone").status_code == 200
    missing = rest.get("/api/v1/groups/g-gone")
    assert (missing.status_code, missing.json()["kafka_error"]) == (404, "GROUP_ID_NOT_FOUND")
