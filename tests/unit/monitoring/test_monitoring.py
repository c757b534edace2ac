"""Alert rules and dashboards: Prometheus's own tool judges them, and every name and label in them exists."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from headrace.cli.common.metrics_catalog import BY_NAME, SERIES
from headrace.telemetry.metrics import Metric

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "monitoring" / "prometheus"
DASHBOARDS = sorted((ROOT / "monitoring" / "grafana").glob("*.json"))
RULES = yaml.safe_load((PROMETHEUS / "headrace.rules.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]

# What Prometheus adds to every series, and to buckets.
GIVEN_LABELS = {"instance", "job", "le"}
# A series with its matchers, if it has some. `up` is Prometheus's own.
SERIES_IN_QUERY = re.compile(r"\b((?:headrace|process)_[a-z_]+)(?:\{([^}]*)\})?")
LABEL_IN_MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
LABELS_OF_SUM = re.compile(r"\bby \(([^)]*)\)")


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, cwd=PROMETHEUS)
    assert done.returncode == 0, done.stdout + done.stderr


def dashboard_queries() -> Iterator[tuple[str, str]]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}", target["expr"]


QUERIES = [*dashboard_queries(), *((rule["alert"], rule["expr"]) for rule in ALERTS)]


def metric_of(series: str) -> Metric:
    assert series in SERIES, f"there is no series {series}"
    return next(metric for metric in BY_NAME.values() if series in metric.series_names())


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_every_query_asks_for_series_and_labels_that_exist(title, query):
    found = SERIES_IN_QUERY.findall(query)
    assert found or "up{" in query, query
    labels = GIVEN_LABELS | {label for series, _ in found for label in metric_of(series).labels}
    for series, matchers in found:
        assert set(LABEL_IN_MATCHER.findall(matchers)) <= GIVEN_LABELS | set(metric_of(series).labels), query
    for names in LABELS_OF_SUM.findall(query):
        assert {name.strip() for name in names.split(",")} <= labels, query


def test_prometheus_can_read_every_query_of_the_dashboards(tmp_path):
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, (_, query) in enumerate(dashboard_queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_prometheus_accepts_the_example_configuration():
    promtool("check", "config", "prometheus.yml")


def test_every_alert_fires_for_the_node_in_trouble_and_for_no_other():
    promtool("test", "rules", "headrace.rules.test.yml")
    tested = yaml.safe_load((PROMETHEUS / "headrace.rules.test.yml").read_text())["tests"]
    assert [test["name"] for test in tested] == [rule["alert"] for rule in ALERTS]
    assert all(test["promql_expr_test"][0]["exp_samples"] for test in tested)


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_every_alert_says_what_to_do(rule):
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")
    assert len(rule["annotations"]["description"]) > 20


def test_the_dashboards_are_what_their_script_writes():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "dashboards.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
