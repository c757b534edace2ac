"""Writes the Grafana dashboards in monitoring/grafana from the panels that are listed here.

python scripts/dashboards.py            writes the files
python scripts/dashboards.py --check    fails if the files are not up to date
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "monitoring" / "grafana"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3  # Grafana's grid is 24 wide
ON = 'instance=~"$instance"'
SINCE_PROGRESS = "(time() - headrace_pipeline_last_progress_timestamp_seconds) * headrace_pipeline_up"


class Panel(NamedTuple):
    title: str
    unit: str
    queries: dict[str, str]  # legend → expression
    kind: str = "timeseries"


class Dashboard(NamedTuple):
    uid: str
    title: str
    rows: dict[str, list[Panel]]


def rate(metric: str, by: str, matchers: str = ON) -> str:
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str = "instance", matchers: str = ON) -> str:
    return f"histogram_quantile({q}, sum by ({by}, le) (rate({metric}_bucket{{{matchers}}}[$__rate_interval])))"


def total(metric: str, by: str = "instance", matchers: str = ON) -> str:
    return f"sum by ({by}) ({metric}{{{matchers}}})"


def stat(title: str, query: str, unit: str = "short") -> Panel:
    return Panel(title, unit, {"": query}, "stat")


def both(metric: str, matchers: str = ON) -> dict[str, str]:
    return {f"p{int(q * 100)} {{{{instance}}}}": quantile(q, metric, "instance", matchers) for q in (0.5, 0.99)}


NODE = Dashboard(
    "headrace-node",
    "headrace: nodes",
    {
        "Cluster health": [
            stat("Processes down", f"count(headrace_part_up{{{ON}}} == 0) or vector(0)"),
            stat("Offline partitions (no leader)", f"sum(headrace_offline_partitions{{{ON}}})"),
            stat("Partitions below min ISR", f"sum(headrace_partitions_under_min_isr{{{ON}}})"),
            stat("Under-replicated partitions", f"sum(headrace_partitions_under_replicated{{{ON}}})"),
            stat("Offline replicas", f"sum(headrace_offline_replicas{{{ON}}})"),
            stat("Registered brokers", f"max(headrace_cluster_brokers{{{ON}}})"),
            stat("Brokers without metadata store", f"count(headrace_metadata_store_up{{{ON}}} == 0) or vector(0)"),
        ],
        "Traffic": [
            Panel("Records in", "ops", {"{{instance}}": rate("headrace_produced_records_total", "instance")}),
            Panel(
                "Bytes",
                "Bps",
                {
                    "in {{instance}}": rate("headrace_network_received_bytes_total", "instance"),
                    "out {{instance}}": rate("headrace_network_sent_bytes_total", "instance"),
                },
            ),
            Panel("Requests by API", "ops", {"{{api}}": rate("headrace_request_duration_seconds_count", "api")}),
            Panel("Produce", "s", both("headrace_request_duration_seconds", f'{ON},api="Produce"')),
            Panel("Error responses", "ops", {"{{api}} {{error}}": rate("headrace_request_errors_total", "api, error")}),
            Panel("Connections", "short", {"{{instance}}": total("headrace_connections")}),
        ],
        "Limits": [
            Panel("Disk sync", "s", both("headrace_sync_duration_seconds")),
            Panel(
                "Event-loop lag, p99",
                "s",
                {"{{instance}} {{part}}": quantile(0.99, "headrace_loop_lag_seconds", "instance, part")},
            ),
            Panel("CPU", "percentunit", {"{{instance}} {{part}}": rate("process_cpu_seconds_total", "instance, part")}),
            Panel(
                "CPU run-queue wait",
                "percentunit",
                {"{{instance}} {{part}}": rate("headrace_process_cpu_wait_seconds_total", "instance, part")},
            ),
            Panel(
                "Memory", "bytes", {"{{instance}} {{part}}": total("process_resident_memory_bytes", "instance, part")}
            ),
            Panel(
                "Requests in purgatory",
                "short",
                {
                    "produce {{instance}}": total("headrace_produce_purgatory_requests"),
                    "fetch {{instance}}": total("headrace_fetch_purgatory_requests"),
                },
            ),
            Panel(
                "Throttled connections", "ops", {"{{reason}}": rate("headrace_connection_throttles_total", "reason")}
            ),
            Panel(
                "Disk",
                "bytes",
                {
                    "free {{instance}}": total("headrace_disk_free_bytes"),
                    "logs {{instance}}": total("headrace_log_bytes"),
                },
            ),
            Panel(
                "File descriptors",
                "percentunit",
                {"{{instance}} {{part}}": f"process_open_fds{{{ON}}} / process_max_fds{{{ON}}}"},
            ),
        ],
        "Replication": [
            Panel("Maximum replica lag", "short", {"{{instance}}": total("headrace_replica_lag_records_max")}),
            Panel(
                "ISR changes",
                "ops",
                {"{{change}} {{instance}}": rate("headrace_isr_changes_total", "change, instance")},
            ),
            Panel("Leaders", "short", {"{{instance}}": total("headrace_partitions_led")}),
        ],
    },
)
TOPICS = Dashboard(
    "headrace-topics",
    "headrace: topics and groups",
    {
        "Topics": [
            Panel(
                "Records by topic",
                "ops",
                {"{{topic}}": f"topk(10, {rate('headrace_partition_end_offset', 'topic')})"},
            ),
            Panel(
                "Hottest partitions",
                "ops",
                {
                    "{{topic}}-{{partition}}": "topk(10, max by (topic, partition)"
                    f" (rate(headrace_partition_end_offset{{{ON}}}[$__rate_interval])))"
                },
            ),
            Panel(
                "Largest topics",
                "bytes",
                {"{{topic}}": f"topk(10, sum by (topic) (headrace_partition_log_bytes{{{ON}}}))"},
            ),
        ],
        "Groups": [
            Panel(
                "Lag",
                "short",
                {"{{group}} {{topic}}": f"topk(20, {total('headrace_group_lag_records', 'group, topic')})"},
            ),
            Panel(
                "Lag in seconds",
                "s",
                {"{{group}} {{topic}}": f"topk(20, max by (group, topic) (headrace_group_lag_seconds{{{ON}}}))"},
            ),
            Panel("Groups by state", "short", {"{{state}}": total("headrace_groups", "state")}),
        ],
        "Transactions": [
            Panel("By state", "short", {"{{state}}": total("headrace_transactions", "state")}),
            Panel(
                "Oldest open transaction",
                "s",
                {"{{instance}}": f"max by (instance) (headrace_transaction_oldest_open_seconds{{{ON}}})"},
            ),
        ],
    },
)
GATEWAY = Dashboard(
    "headrace-gateway",
    "headrace: REST and gRPC",
    {
        "REST": [
            Panel("Requests by status", "ops", {"{{status}}": rate("headrace_http_requests_total", "status")}),
            Panel(
                "Requests by route",
                "ops",
                {"{{method}} {{route}}": rate("headrace_http_requests_total", "method, route")},
            ),
            Panel(
                "p99 by route",
                "s",
                {"{{method}} {{route}}": quantile(0.99, "headrace_http_request_duration_seconds", "method, route")},
            ),
            Panel("Requests in flight", "short", {"{{instance}}": total("headrace_http_requests_under_way")}),
            Panel("Event streams", "short", {"{{instance}}": total("headrace_http_event_streams")}),
            Panel("REST consumers", "short", {"{{instance}}": total("headrace_http_consumers")}),
        ],
        "gRPC": [
            Panel("Calls by code", "ops", {"{{code}}": rate("headrace_grpc_calls_total", "code")}),
            Panel(
                "p99 by method", "s", {"{{method}}": quantile(0.99, "headrace_grpc_call_duration_seconds", "method")}
            ),
            Panel("Open calls and streams", "short", {"{{method}}": total("headrace_grpc_calls_under_way", "method")}),
        ],
        "Upstream": [
            Panel(
                "Messages waiting for the broker",
                "short",
                {"{{part}} {{instance}}": total("headrace_upstream_waiting_messages", "part, instance")},
            ),
        ],
    },
)
# Pipelines and archivers are scraped where they run. They have no node, so the dashboard has no instance variable.
PIPELINES = Dashboard(
    "headrace-pipelines",
    "headrace: pipelines and archives",
    {
        "Pipelines": [
            stat("Stalled", 'sum(headrace_pipeline_state{state="stalled"})'),
            stat("Failed, fenced or restarting", 'sum(headrace_pipeline_state{state=~"failed|fenced|restarting"})'),
            stat("Running", 'sum(headrace_pipeline_state{state="running"})'),
            Panel("Lag in seconds", "s", {"{{pipeline}}": "headrace_pipeline_lag_seconds"}),
            Panel("Lag", "short", {"{{pipeline}}": "headrace_pipeline_lag_records"}),
            Panel("Time since progress", "s", {"{{pipeline}}": SINCE_PROGRESS}),
            Panel("Rows read", "ops", {"{{pipeline}}": rate("headrace_pipeline_rows_read_total", "pipeline", "")}),
            Panel(
                "Rows written", "ops", {"{{pipeline}}": rate("headrace_pipeline_rows_written_total", "pipeline", "")}
            ),
            Panel("Batch duration", "s", {"{{pipeline}}": "headrace_pipeline_batch_seconds"}),
            Panel(
                "Dead-letter records and late rows",
                "ops",
                {
                    "dead letters {{pipeline}}": rate("headrace_pipeline_dead_letters_total", "pipeline", ""),
                    "late rows {{pipeline}}": rate("headrace_pipeline_late_rows_total", "pipeline", ""),
                },
            ),
            Panel("State", "short", {"{{pipeline}}": "headrace_pipeline_state_rows"}),
            Panel("State memory", "bytes", {"{{pipeline}}": "headrace_pipeline_state_bytes"}),
        ],
        "Archives": [
            Panel("Lag", "short", {"{{topic}}": total("headrace_archive_lag_records", "topic", "")}),
            Panel("Archived records", "ops", {"{{topic}}": rate("headrace_archive_offset", "topic", "")}),
            Panel("Lost records", "short", {"{{topic}}": total("headrace_archive_lost_total", "topic", "")}),
            Panel("Live files", "short", {"{{topic}}": "headrace_archive_files"}),
            Panel("Commits", "ops", {"{{topic}}": rate("headrace_archive_commits_total", "topic", "")}),
        ],
    },
)
DASHBOARDS = {"nodes.json": NODE, "topics.json": TOPICS, "gateway.json": GATEWAY, "pipelines.json": PIPELINES}


def document(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), _instances()]},
        "panels": list(_panels(dashboard)),
    }


def _data_source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instances() -> dict[str, Any]:
    return {
        "name": "instance",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": "label_values(headrace_build_info, instance)", "refId": "instances"},
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(dashboard: Dashboard) -> Any:
    number = y = 0
    for title, panels in dashboard.rows.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}
        y += 1
        for place, panel in enumerate(panels):
            number += 1
            x, row = place % COLUMNS * WIDTH, place // COLUMNS
            yield _panel(number, panel, {"x": x, "y": y + row * HEIGHT, "w": WIDTH, "h": HEIGHT})
        y += -(-len(panels) // COLUMNS) * HEIGHT


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": source}
        for index, (legend, expression) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "gridPos": place,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def main() -> int:
    stale = []
    for name, dashboard in DASHBOARDS.items():
        text = json.dumps(document(dashboard), indent=1) + "\n"
        path = FOLDER / name
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif path.read_text() != text:
            stale.append(name)
    if stale:
        print(f"not up to date, run scripts/dashboards.py: {', '.join(stale)}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
