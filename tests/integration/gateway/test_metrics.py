"""A scrape of a node: what clients did is what it says, in names that are all documented."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import grpc
import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from headrace.rpc import headrace_pb2 as pb
from headrace.rpc import headrace_pb2_grpc as services
from headrace.telemetry import broker_metrics
from headrace.telemetry.metric_catalog import SERIES
from headrace.testing import LocalBroker
from tests.integration.gateway.conftest import make_topic
from tests.integration.stable_offsets import until_stable
from tests.patience import awaited

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.5"


class Scrape:
    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self._samples = [sample for family in self.families for sample in family.samples]
        self.names = {sample.name for sample in self._samples}

    def values(self, name: str, **labels: str) -> list[float]:
        return [one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items()]

    def value(self, name: str, **labels: str) -> float:
        (found,) = self.values(name, **labels)
        return found


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True, memory=False, settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


def scrape(rest: httpx.Client) -> Scrape:
    answer = rest.get("/metrics")
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)


def test_what_kafka_clients_do_is_counted(broker, rest):
    topic = make_topic(rest, partitions=2)
    before = scrape(rest)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-writer"})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(10):
        producer.produce(topic, f"value {number}", partition=number % 2)
    producer.commit_transaction()
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-readers"})) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 6)], asynchronous=False)
    for partition in range(2):
        until_stable(broker.bootstrap, topic, 6, partition)
    after = awaited(
        lambda: scrape(rest),
        lambda scraped: scraped.values("headrace_transactions", state="CompleteCommit") == [1],
        "the coordinator knows that the markers are written",
        30.0,
    )
    assert after.value("headrace_produced_records_total") - before.value("headrace_produced_records_total") == 10
    assert after.value("headrace_request_duration_seconds_count", api="Produce") >= 1
    assert after.value("headrace_sync_duration_seconds_count") > before.value("headrace_sync_duration_seconds_count")
    assert after.value("headrace_network_received_bytes_total") > before.value("headrace_network_received_bytes_total")
    # Five records and a marker each; the group has seen two of the one and all of the other.
    assert after.value("headrace_partition_end_offset", topic=topic, partition="0") == 6
    assert after.value("headrace_group_lag_records", group=f"{topic}-readers", topic=topic) == 4
    assert 0 < after.value("headrace_group_lag_seconds", group=f"{topic}-readers", topic=topic) < 60
    assert after.value("headrace_groups", state="Empty") >= 1


def test_what_is_refused_is_counted_by_its_error(broker, rest):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 4_000_000})
    topic = make_topic(rest, **{"max.message.bytes": "1000"})
    failed: list[object] = []
    producer.produce(topic, b"x" * 2_000, on_delivery=lambda error, _: failed.append(error))
    producer.flush()
    assert failed
    found = scrape(rest)
    assert found.value("headrace_request_errors_total", api="Produce", error="MESSAGE_TOO_LARGE") >= 1


def test_waiting_fetches_and_open_streams_are_seen_while_they_wait(broker, rest):
    topic = make_topic(rest)
    with (
        httpx.Client(base_url=broker.http_url, timeout=30) as listener,
        listener.stream("GET", f"/api/v1/groups/{topic}-live/stream", params={"topic": topic}) as stream,
    ):
        lines = stream.iter_lines()
        while "assigned" not in next(lines):
            pass
        waiting = scrape(rest)
        assert waiting.value("headrace_http_event_streams") == 1
        assert waiting.value("headrace_http_consumers") == 1
        assert waiting.value("headrace_groups", state="Stable") >= 1


def test_rest_and_grpc_are_counted_by_route_and_method(broker, rest):
    topic = make_topic(rest)
    for _ in range(3):
        assert rest.post(f"/topics/{topic}/messages", json={"value": "x"}).status_code == 200
    rest.get("/nothing/here/at/all")
    rest.get("/api/v1/health")
    with grpc.insecure_channel(broker.grpc_address) as channel:
        stub = services.AdminStub(channel)
        stub.ListTopics(pb.ListTopicsRequest(), timeout=30, wait_for_ready=True)
        with pytest.raises(grpc.RpcError):
            stub.DescribeTopic(pb.DescribeTopicRequest(name="no-such-topic"), timeout=30)
    found = scrape(rest)
    produced = found.value("headrace_http_requests_total", route="/topics/{topic}/messages", status="200")
    assert produced >= 3
    assert found.value("headrace_http_requests_total", method="GET", route="none", status="404") >= 1
    assert found.value("headrace_http_requests_total", route="/api/v1/health", status="200") >= 1
    assert found.value("headrace_grpc_calls_total", method="ListTopics", code="OK") == 1
    assert found.value("headrace_grpc_calls_total", method="DescribeTopic", code="NOT_FOUND") == 1
    for part in ("broker", "gateway", "grpc"):
        assert found.value("headrace_part_up", part=part) == 1
        assert found.value("process_resident_memory_bytes", part=part) > 1_000_000


def test_every_series_is_documented_and_every_metric_of_the_broker_is_there(rest):
    found = scrape(rest)
    assert found.names <= SERIES
    assert {family.name for family in found.families} >= {
        metric.name.removesuffix("_total") for metric in broker_metrics.ALL
    }


def test_who_asks_for_openmetrics_gets_it(rest):
    answer = rest.get("/metrics", headers={"accept": OPENMETRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(answer.text)} >= {"headrace_request_duration_seconds"}


def test_health_tells_of_every_process(rest):
    checks = rest.get("/api/v1/health").json()["checks"]
    assert {name.partition(".")[0] for name in checks} >= {"broker", "gateway", "grpc", "leaders"}
    assert checks["broker.disk"]["status"] == "ok", checks
    assert rest.get("/ready").status_code == 200


def test_many_scrapes_at_once_are_all_answered(broker):
    answers: list[int] = []

    def ask() -> None:
        answers.append(httpx.get(f"{broker.http_url}/metrics", timeout=30).status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 8


def test_the_doctor_finds_a_hot_partition_and_a_slow_consumer(broker, rest):
    topic = make_topic(rest, partitions=4)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"old", partition=0, timestamp=int(time.time() * 1000) - 60_000)
    producer.flush()
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-slow"})) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    command = [
        sys.executable,
        "-m",
        "headrace.cli.main",
        "doctor",
        "--url",
        broker.http_url,
        "--seconds",
        "2",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as doctor:
        while doctor.poll() is None:
            for _ in range(50):
                producer.produce(topic, b"new", partition=0)
            producer.flush()
            time.sleep(0.02)
        assert doctor.stdout is not None
        found = {one["name"]: one for one in json.loads(doctor.stdout.read())}
    assert f"{topic}-0 takes 100%" in found["hot partition"]["found"], found
    behind = re.match(rf"{topic}-slow is ([\d,]+) s and ", found["slow consumer"]["found"])
    assert behind is not None, found
    assert int(behind[1].replace(",", "")) >= 60
    assert found["slow consumer"]["status"] == "problem", "its lag grows"
    assert doctor.returncode == 1


def test_a_broker_without_a_gateway_tells_its_own():
    with LocalBroker(settings={"metrics_addr": "127.0.0.1:0"}) as alone:
        said = re.search(r"metrics of the broker on (http://\S+)/metrics", alone.output())
        assert said is not None, alone.output()
        url = said[1]
        found = Scrape(httpx.get(f"{url}/metrics", timeout=30).text)
        assert found.names <= SERIES
        assert found.value("headrace_connections") == 0
        assert found.value("process_open_fds", part="broker") > 3
        assert httpx.get(f"{url}/ready", timeout=30).json() == {"status": "ok"}
