"""etcd loses its majority: metrics, alerts, tools and readiness report it, while acks=all goes on."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.telemetry.prometheus import Interval, parse
from headrace.testing.local.cluster import LocalCluster
from tests.patience import awaited

PATIENCE_S = 60
SESSION_MS = 3000
WHERE = re.compile(r"metrics of the broker on (\S+)/metrics")
RULES = Path(__file__).resolve().parents[2] / "monitoring" / "prometheus" / "headrace.rules.yml"
SCRAPE_S, ALERT_WITHIN_S = 10, 100


def url(cluster: LocalCluster, broker: int) -> str:
    return WHERE.findall(cluster.brokers[broker].output())[-1]


def figures(cluster: LocalCluster) -> dict[int, Interval]:
    pages = {one: httpx.get(f"{url(cluster, one)}/metrics", timeout=PATIENCE_S).text for one in cluster.brokers}
    return {one: Interval({}, parse(page), 1.0) for one, page in pages.items()}


def sessions_up(found: dict[int, Interval]) -> float:
    return sum(one.now("headrace_metadata_store_up", operation="session") for one in found.values())


def controllers(found: dict[int, Interval]) -> float:
    return sum(one.now("headrace_controller_active") for one in found.values())


def is_well(found: dict[int, Interval]) -> bool:
    return sessions_up(found) == len(found) and controllers(found) == 1


def headrace(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def produce(cluster: LocalCluster) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    producer.produce("t", b"x", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None]


def firing(before: dict[int, Interval], during: dict[int, Interval], folder: Path) -> None:
    """promtool holds the scraped figures against the rules: both alerts fire in time, on every broker."""
    series = []
    for name, labels in (("headrace_metadata_store_up", {"operation": "session"}), ("headrace_controller_active", {})):
        for broker in before:
            all_labels = {"job": "headrace", "instance": str(broker), **labels}
            text = ",".join(f'{key}="{value}"' for key, value in all_labels.items())
            was, now = (int(found[broker].now(name, **labels)) for found in (before, during))
            series.append({"series": f"{name}{{{text}}}", "values": f"{was} {now}x{ALERT_WITHIN_S // SCRAPE_S}"})
    common = 'alertstate="firing",severity="critical",job="headrace"'
    expected = [f'ALERTS{{alertname="HeadraceNoController",{common}}}']
    expected += [
        f'ALERTS{{alertname="HeadraceMetadataStoreDown",{common},instance="{broker}",operation="session"}}'
        for broker in before
    ]
    test = {
        "interval": f"{SCRAPE_S}s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertstate="firing"}',
                "eval_time": f"{ALERT_WITHIN_S}s",
                "exp_samples": [{"labels": one, "value": 1} for one in expected],
            }
        ],
    }
    rules = {"rule_files": [str(RULES)], "evaluation_interval": f"{SCRAPE_S}s", "tests": [test]}
    path = folder / "outage.test.yml"
    path.write_text(yaml.safe_dump(rules))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_etcd_without_majority_is_reported_while_acks_all_works(tmp_path: Path) -> None:
    settings = {"metrics_addr": "127.0.0.1:0", "broker.session.timeout.ms": str(SESSION_MS)}
    with LocalCluster(3, etcd=3, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(PATIENCE_S)
        produce(cluster)
        before = awaited(lambda: figures(cluster), is_well, "sessions and a controller", PATIENCE_S)
        for member in (1, 2):
            cluster.kill_etcd(member)
        awaited(
            lambda: figures(cluster),
            lambda found: all(
                one.now("headrace_session_age_seconds") > 2 * SESSION_MS / 1000 for one in found.values()
            ),
            "sessions older than their timeout",
            PATIENCE_S,
        )
        during = awaited(lambda: figures(cluster), lambda found: not sessions_up(found), "no session", PATIENCE_S)
        assert controllers(during) == 0
        firing(before, during, tmp_path)
        for broker in cluster.brokers:
            assert httpx.get(f"{url(cluster, broker)}/ready", timeout=PATIENCE_S).status_code == 200
            assert httpx.get(f"{url(cluster, broker)}/checks", timeout=PATIENCE_S).json()["status"] == "degraded"
        produce(cluster)
        found = headrace("cluster", "status", "--bootstrap", cluster.bootstrap)
        assert "controller (inactive)" in found.stdout, found.stdout + found.stderr
        assert found.stdout.count("the metadata store has not confirmed this broker's session for") == 3
        store = json.loads(headrace("cluster", "status", "--json", "--bootstrap", cluster.bootstrap).stdout)
        assert store["metadata_store"]["available"] is False
        doctor = headrace("doctor", "--url", url(cluster, 1), "--seconds", "1")
        assert doctor.returncode == 1
        assert "metadata store" in doctor.stdout
        cluster.restart_etcd(1)
        awaited(lambda: figures(cluster), is_well, "sessions and a controller again", PATIENCE_S)
        well = json.loads(headrace("cluster", "status", "--json", "--bootstrap", cluster.bootstrap).stdout)
        assert well["metadata_store"] == {"available": True, "problems": {}}
