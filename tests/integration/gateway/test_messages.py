"""Messages over REST: every shape in, every shape out, and the same bytes for a Kafka client."""

import gzip
import json
import random

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.api.rest.read import ANSWER_BYTES_MAX
from headrace.testing import LocalBroker
from tests.integration.gateway.conftest import make_topic


def read(rest: httpx.Client, topic: str, partition: int = 0, **query: object) -> list[dict[str, object]]:
    answer = rest.get(f"/topics/{topic}/partitions/{partition}/messages", params=query)
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, object]] = answer.json()["messages"]
    return messages


def kafka_records(broker: LocalBroker, topic: str, count: int) -> list[tuple[bytes | None, bytes | None, object]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "t", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.consume(count, 20)
    finally:
        consumer.close()
    assert all(one.error() is None for one in found)
    return [(one.key(), one.value(), one.headers()) for one in found]


@pytest.mark.parametrize(
    ("message", "stored"),
    [
        ({"key": "user-1", "value": "Hello World"}, (b"user-1", b"Hello World", None)),
        ({"value": "grüße"}, (None, "grüße".encode(), None)),
        ({"value": {"a": [1, None]}}, (None, b'{"a":[1,null]}', None)),
        ({"key": 7, "value": True}, (b"7", b"true", None)),
        ({"key": "gone", "value": None}, (b"gone", None, None)),
        ({"key_base64": "/w==", "value_base64": ""}, (b"\xff", b"", None)),
        ({"value": "x", "headers": {"a": "1", "b": None}}, (None, b"x", [("a", b"1"), ("b", None)])),
        (
            {"value": "x", "headers": [{"name": "a", "value_base64": "AA=="}, {"name": "a", "value": "2"}]},
            (None, b"x", [("a", b"\x00"), ("a", b"2")]),
        ),
    ],
)
def test_a_message_reaches_kafka_clients_as_it_was_meant(broker, rest, topic, produce, message, stored):
    assert produce(**message).json()["offset"] == 0
    assert kafka_records(broker, topic, 1) == [stored]


def test_a_message_is_read_back_as_it_was_written(rest, topic, produce):
    produce(key="k", value="v", headers={"h": "1"}, timestamp=1_700_000_000_000)
    (found,) = read(rest, topic)
    assert found == {
        "offset": 0,
        "timestamp": 1_700_000_000_000,
        "key": "k",
        "value": "v",
        "headers": [{"name": "h", "value": "1"}],
    }


@pytest.mark.parametrize("value", ["123456789012345678901234567890", "1.10", "-0", '{"n": "\\u00e9", "n":[1E2]}'])
def test_json_values_are_stored_as_the_bytes_sent(broker, rest, topic, value):
    message = f'{{"key": {value}, "value": {value}, "headers": {{"h": {value}}}}}'
    for body, media_type in (
        (message, "application/json"),
        (f'{{"messages": [{message}]}}', "application/json"),
        (message, "application/x-ndjson"),
    ):
        answer = rest.post(f"/topics/{topic}/messages", content=body, headers={"content-type": media_type})
        assert answer.status_code == 200, answer.text
    sent = value.encode()
    assert kafka_records(broker, topic, 3) == [(sent, sent, [("h", sent)])] * 3
    answer = rest.get(f"/topics/{topic}/partitions/0/messages", params={"format": "json"})
    assert answer.text.count(f'"key":{value},"value":{value}') == 3


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("application/json", b'{"value": "v"}'),
        ("application/json", b'{"messages": [{"value": "v"}]}'),
        ("text/plain", b"v"),
        ("application/octet-stream", b"v"),
        ("application/x-ndjson", b'{"value": "v"}'),
    ],
)
def test_gzip_bodies_are_decompressed(broker, rest, topic, media_type, body):
    headers = {"content-type": media_type, "content-encoding": "gzip"}
    answer = rest.post(f"/topics/{topic}/messages", content=gzip.compress(body), headers=headers)
    assert answer.status_code == 200, answer.text
    assert kafka_records(broker, topic, 1) == [(None, b"v", None)]


def test_a_body_in_another_encoding_is_refused(rest, topic):
    headers = {"content-type": "text/plain", "content-encoding": "br"}
    for path in (f"/topics/{topic}/messages", "/topics"):
        answer = rest.post(path, content=b"x", headers=headers)
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, identity")
    assert read(rest, topic) == []


def test_formats_show_the_same_bytes_differently(rest, topic, produce):
    produce(value={"n": 1})
    produce(value_base64="/w==")
    assert [one.get("value") for one in read(rest, topic)] == ['{"n":1}', None]
    assert read(rest, topic, format="json")[0]["value"] == {"n": 1}
    assert [one["value_base64"] for one in read(rest, topic, format="base64")] == ["eyJuIjoxfQ==", "/w=="]


def test_a_key_goes_where_java_puts_it(rest):
    topic = make_topic(rest, partitions=4)
    places = {}
    for key in ("user-1", "user-2", "user-3", "a", "abc"):
        places[key] = rest.post(f"/topics/{topic}/messages", json={"key": key, "value": ""}).json()["partition"]
    # Utils.toPositive(Utils.murmur2(key)) % 4 of Java's client
    assert places == {key: _murmur2(key.encode()) % 4 for key in places}


def _murmur2(data: bytes) -> int:
    """Kafka's hash, written down a second time: librdkafka's is under test here."""
    length, m = len(data), 0x5BD1E995
    h = (0x9747B28C ^ length) & 0xFFFFFFFF
    for at in range(0, length - length % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & 0xFFFFFFFF
        k = (k ^ k >> 24) * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ k
    rest = data[length - length % 4 :]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * m) & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_text_and_bytes_are_taken_as_they_are(rest, topic):
    for media_type, body in (("text/plain", "grüße".encode()), ("application/octet-stream", b"\xff\x00")):
        answer = rest.post(
            f"/topics/{topic}/messages?key=k&acks=leader", content=body, headers={"content-type": media_type}
        )
        assert answer.status_code == 200, answer.text
    assert [one.get("value", one.get("value_base64")) for one in read(rest, topic)] == ["grüße", "/wA="]


def test_without_acks_nobody_knows_the_offset(rest, topic):
    answer = rest.post(f"/topics/{topic}/messages?acks=none", json={"value": "x"})
    assert answer.json()["offset"] is None
    assert [one["value"] for one in read(rest, topic, wait_ms=10_000)] == ["x"]


def test_each_message_of_a_batch_has_its_own_outcome(rest, topic):
    large = random.Random(1).randbytes(2_000_000).hex()  # does not become smaller than the topic allows
    answer = rest.post(f"/topics/{topic}/messages", json={"messages": [{"value": "a"}, {"value": large}]})
    assert answer.status_code == 207
    first, second = answer.json()["messages"]
    assert first["offset"] == 0
    assert (second["kafka_error"], second["retriable"]) == ("MESSAGE_TOO_LARGE", False)


def test_lines_go_up_and_come_down(rest):
    topic = make_topic(rest, partitions=3)
    rows = [{"key": f"k{number % 7}", "value": f"v{number}"} for number in range(5_000)]
    rows[7] = {"value": "with headers", "headers": {"h": "1"}}
    rows[8] = {"value": {"n": 8}, "partition": 2, "timestamp": 1_700_000_000_000}
    body = "\n".join(json.dumps(row) for row in rows).encode()
    answer = rest.post(f"/topics/{topic}/messages", content=body, headers={"content-type": "application/x-ndjson"})
    assert answer.json() == {"topic": topic, "written": 5_000}

    down = [json.loads(line) for line in rest.get(f"/api/v1/topics/{topic}/messages").text.splitlines()]
    assert len(down) == 5_000
    by_key = [one["value"] for one in down if one["key"] == "k3"]
    assert by_key == [f"v{number}" for number in range(3, 5_000, 7)], "a key's messages keep their order"


def test_a_wrong_line_is_named_and_what_stood_before_it_is_written(rest, topic):
    body = b'{"value": "a"}\n\n{"value": "b"}\n{"valu": 1}\n{"value": "never"}\n'
    answer = rest.post(f"/topics/{topic}/messages", content=body, headers={"content-type": "application/x-ndjson"})
    problem = answer.json()
    assert (answer.status_code, problem["line"], problem["written"]) == (422, 4, 2)
    assert [one["value"] for one in read(rest, topic)] == ["a", "b"]


def test_reading_goes_on_where_the_last_answer_ended(rest, topic, produce):
    for number in range(5):
        produce(value=str(number))
    first = rest.get(f"/topics/{topic}/partitions/0/messages?offset=1&max_records=2").json()
    assert ([one["value"] for one in first["messages"]], first["next_offset"]) == (["1", "2"], 3)
    assert [one["value"] for one in read(rest, topic, offset=first["next_offset"])] == ["3", "4"]


def test_one_answer_is_bounded_by_decompressed_bytes(rest, topic):
    """Records that compress to nothing: a fetch has thousands of them."""
    body = {"messages": [{"value": "x" * 900_000}] * 10}
    for _ in range(3):
        rest.post(f"/topics/{topic}/messages", json=body).raise_for_status()
    offset, counts = 0, []
    while offset < 30:
        answer = rest.get(f"/topics/{topic}/partitions/0/messages", params={"offset": offset}).json()
        offset = answer["next_offset"]
        counts.append(len(answer["messages"]))
    assert counts == [ANSWER_BYTES_MAX // 900_000] * 3 + [30 - 3 * (ANSWER_BYTES_MAX // 900_000)]


def test_reading_can_begin_at_a_time(rest, topic, produce):
    for number in range(3):
        produce(value=str(number), timestamp=1_000 + number)
    assert [one["value"] for one in read(rest, topic, timestamp=1_001)] == ["1", "2"]
    assert read(rest, topic, timestamp=5_000) == []


def test_reading_waits_for_a_record_that_is_yet_to_come(broker, rest, topic):
    with httpx.Client(base_url=broker.http_url) as other:
        import threading

        found: list[dict[str, object]] = []
        reader = threading.Thread(target=lambda: found.extend(read(rest, topic, offset=0, wait_ms=20_000)))
        reader.start()
        other.post(f"/topics/{topic}/messages", json={"value": "late"})
        reader.join(20)
    assert [one["value"] for one in found] == ["late"]


def test_records_of_aborted_transactions_are_left_out(broker, rest, topic, produce):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(20)
    for value, commit in (("aborted", False), ("committed", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    produce(value="plain")
    assert [one["value"] for one in read(rest, topic, wait_ms=5_000)] == ["committed", "plain"]
    uncommitted = read(rest, topic, isolation="read_uncommitted")
    assert [one["value"] for one in uncommitted] == ["aborted", "committed", "plain"]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("", {"valu": 1}, 422, "no field 'valu'"),
        ("", {"key": "k"}, 422, "a message has a value"),
        ("", ["a"], 422, "a message is an object"),
        ("", {"value": 1, "value_base64": "AA=="}, 422, "not both"),
        ("", {"value_base64": "§"}, 422, "is not base64"),
        ("", {"value": 1, "partition": -1}, 422, "partition is a whole number"),
        ("", {"value": 1, "timestamp": 1.5}, 422, "timestamp is a whole number"),
        ("", {"value": 1, "partition": 7}, 404, "has partitions 0 to 0"),
        ("?acks=some", {"value": 1}, 422, "write all, leader or none"),
        ("?nack=1", {"value": 1}, 422, "no parameter 'nack'"),
        ("", {"messages": []}, 422, "1 to 10,000 messages"),
        ("", {"messages": [{"value": 1}, 2]}, 422, "messages[1]: a message is an object"),
    ],
)
def test_a_wrong_message_is_told_what_is_wrong(rest, topic, path, body, status, told):
    answer = rest.post(f"/topics/{topic}/messages{path}", json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert told in answer.json()["detail"]


def test_a_topic_that_does_not_exist_is_not_made_by_asking_for_it(rest):
    assert rest.post("/topics/nobody/messages", json={"value": 1}).status_code == 404
    assert rest.get("/topics/nobody/partitions/0/messages").status_code == 404
    assert "nobody" not in [one["name"] for one in rest.get("/topics").json()["topics"]]


def test_an_offset_that_is_not_there_is_told_with_those_that_are(rest, topic, produce):
    produce(value="a")
    answer = rest.get(f"/topics/{topic}/partitions/0/messages?offset=9")
    problem = answer.json()
    assert (answer.status_code, problem["kafka_error"], problem["end_offset"]) == (422, "OFFSET_OUT_OF_RANGE", 1)
