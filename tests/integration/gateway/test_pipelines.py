"""Pipelines report to a topic; REST tells the newest report of each."""

import json
import time

from confluent_kafka import Producer

from headrace.api.pipeline_reports import TOPIC

# Any client may write to the topic.
MALFORMED = [
    b"no JSON",
    b'{"pipeline": ["a list"], "at_ms": 1}',
    b'{"pipeline": "totals", "at_ms": "99999999999999"}',
    b'{"pipeline": "totals", "at_ms": 1e300}',
    b'{"pipeline": "text", "at_ms": "soon"}',
    b'{"pipeline": "deep", "at_ms": 1, "more": ' + b"[" * 500 + b"]" * 500 + b"}",
]


def report(name: str, batch: int) -> bytes:
    return json.dumps({"pipeline": name, "at_ms": int(time.time() * 1000), "batch": batch, "rows_in": 5}).encode()


def test_the_newest_report_of_each_pipeline_is_told(broker, rest):
    assert rest.get("/api/v1/pipelines").json() == {"pipelines": [], "next": None}, "none has ever run"
    rest.post("/topics", json={"name": TOPIC, "partitions": 2}).raise_for_status()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for batch in range(3):
        for name in ("totals", "alerts"):
            producer.produce(TOPIC, report(name, batch), key=name)
    for malformed in MALFORMED:
        producer.produce(TOPIC, malformed, partition=0)
    producer.flush()
    told = rest.get("/api/v1/pipelines").json()["pipelines"]
    assert [(one["pipeline"], one["batch"]) for one in told] == [("alerts", 2), ("totals", 2)]
    producer.produce(TOPIC, report("totals", 3), key="totals")
    producer.flush()
    one = rest.get("/api/v1/pipelines/totals").json()
    assert (one["batch"], one["rows_in"]) == (3, 5)
    assert 0 <= one["seconds_ago"] < 60
    assert rest.get("/api/v1/pipelines/unheard-of").status_code == 404
