"""What /metrics says, judged by Prometheus's own parsers of both formats."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from headrace.telemetry.metric_catalog import BY_NAME, SERIES
from headrace.telemetry.metrics import (
    Histogram,
    Kind,
    Metric,
    MetricFamily,
    by_label,
    from_document,
    merge,
    one,
    to_document,
)
from headrace.telemetry.prometheus import OPENMETRICS, TEXT, content_type_for, render

REQUESTS = Metric("tries_total", Kind.COUNTER, 'How often; "\\" counts.', ("who",))
SIZE = Metric("size_bytes", Kind.GAUGE, "How large.")
TIMES = Metric("times_seconds", Kind.HISTOGRAM, "How long.", ("who",), (0.0001, 0.5, 30.0))


def _families() -> list[MetricFamily]:
    times = Histogram(TIMES.bounds)
    for seconds in (0.00005, 0.0001, 0.2, 31.0):
        times.add(seconds)
    return [by_label(REQUESTS, [('a"\\\n', 3)]), one(SIZE, 1.5), by_label(TIMES, [("b", times.value())])]


@pytest.mark.parametrize(("content_type", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)])
def test_both_formats_are_read_back_as_they_were_meant(content_type, parse):
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(render(_families(), content_type).decode())
        for sample in family.samples
    }
    assert samples["tries_total", (("who", 'a"\\\n'),)] == 3
    assert samples["size_bytes", ()] == 1.5
    buckets = {key[1][0][1]: value for key, value in samples.items() if key[0] == "times_seconds_bucket"}
    assert buckets == {"0.0001": 2, "0.5": 3, "30.0": 3, "+Inf": 4}
    assert samples["times_seconds_count", (("who", "b"),)] == 4
    assert samples["times_seconds_sum", (("who", "b"),)] == pytest.approx(31.20015)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_metric_passes_the_strict_parser(name):
    metric = BY_NAME[name]
    value = Histogram(metric.bounds).value() if metric.kind is Kind.HISTOGRAM else 1
    family = MetricFamily(metric, [(tuple("x" for _ in metric.labels), value)])
    (parsed,) = parse_openmetrics(render([family], OPENMETRICS).decode())
    assert parsed.type == metric.kind


def test_names_follow_the_conventions():
    for metric in BY_NAME.values():
        assert metric.name.startswith(("headrace_", "process_")), metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert metric.help.endswith("."), metric.name
        assert list(metric.bounds) == sorted(metric.bounds), metric.name
        assert not metric.name.endswith(("_ms", "_kb", "_bucket", "_sum", "_count")), metric.name
    assert "headrace_request_duration_seconds_bucket" in SERIES


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1", OPENMETRICS),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.9", TEXT),
        ("application/openmetrics-text;q=nonsense", TEXT),
    ],
)
def test_the_client_chooses_the_format(accept, expected):
    assert content_type_for(accept) == expected


def test_figures_travel_between_processes_and_come_together():
    known = {metric.name: metric for metric in (REQUESTS, SIZE, TIMES)}
    here = _families()
    there = from_document(to_document(here) | {"from_the_future": [[[], 1]]}, known)
    assert there == here
    (merged,) = [family for family in merge([here, there]) if family.metric is REQUESTS]
    assert len(merged.samples) == 2
