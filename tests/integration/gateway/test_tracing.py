"""Traces of requests, as a collector receives them; and log lines as documents."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.config.loader import SettingsError, load_settings
from headrace.rpc import headrace_pb2 as pb
from headrace.rpc import headrace_pb2_grpc as services
from headrace.testing import LocalBroker

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiving)
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.news = threading.Condition()

    def wait_for(self, *names: str) -> dict[str, Any]:
        with self.news:
            assert self.news.wait_for(lambda: {span.name for span in self.spans} >= set(names), timeout=60), self.spans
            return {span.name: span for span in self.spans}


class _Receiving(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest.FromString(body)
        with self.server.news:
            for resource in request.resource_spans:
                attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
                self.server.services.add(attributes["service.name"])
                self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self.server.news.notify_all()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def broker(collector: Collector) -> Iterator[LocalBroker]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        environment.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with LocalBroker(gateway=True, settings={"tracing.enabled": "true", "logging.format": "json"}) as broker:
            yield broker


def test_requests_become_spans_of_the_callers_trace(broker, collector, rest):
    rest.post("/topics", json={"name": "traced", "partitions": 1}).raise_for_status()
    sent = rest.post("/topics/traced/messages", json={"value": "x"}, headers={"traceparent": TRACEPARENT})
    assert sent.status_code == 200
    assert rest.get("/api/v1/topics/no-such-topic").status_code == 404
    with grpc.insecure_channel(broker.grpc_address) as channel:
        stub = services.AdminStub(channel)
        stub.ListTopics(
            pb.ListTopicsRequest(), timeout=30, wait_for_ready=True, metadata=(("traceparent", TRACEPARENT),)
        )
    spans = collector.wait_for("POST /topics/{topic}/messages", "GET /api/v1/topics/{topic}", "Admin/ListTopics")
    for name in ("POST /topics/{topic}/messages", "Admin/ListTopics"):
        assert spans[name].trace_id.hex() == TRACE
        assert spans[name].parent_span_id.hex() == PARENT
    attributes = {one.key: one.value for one in spans["GET /api/v1/topics/{topic}"].attributes}
    assert attributes["http.response.status_code"].int_value == 404
    assert attributes["url.path"].string_value == "/api/v1/topics/no-such-topic"
    assert spans["GET /api/v1/topics/{topic}"].status.code == 0, "the client's mistake is no error of ours"
    assert collector.services == {"headrace-gateway", "headrace-grpc"}


def test_every_line_of_the_log_is_a_document(broker):
    def lines() -> list[dict[str, str]]:
        return [json.loads(line) for line in broker.output().splitlines()]

    deadline = time.monotonic() + 60
    while {line["part"] for line in lines()} < {"broker", "gateway", "grpc"} and time.monotonic() < deadline:
        time.sleep(0.05)
    serving = next(line for line in lines() if "serves PLAINTEXT" in line["message"])
    assert (serving["level"], serving["part"]) == ("info", "broker")
    assert serving["time"].endswith("Z")


def test_tracing_needs_its_extra(monkeypatch):
    monkeypatch.setattr("headrace.telemetry.tracing.NEEDED", ("no_such_package.at_all",))
    with pytest.raises(SettingsError, match=r"pip install 'headrace\[otel\]'"):
        load_settings(None, {}, [("tracing.enabled", "true", "--set: ")])


def test_nothing_that_traces_is_loaded_without_it(tmp_path):
    program = "import sys, headrace.app.rest_process, headrace.api.rest.server"
    program += ", headrace.app.grpc_process, headrace.api.grpc.server; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=tmp_path).returncode == 0
