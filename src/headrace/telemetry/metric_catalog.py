"""Every metric of a node. Sidecar processes have others (`headrace.cli.common.metrics_catalog`)."""

from headrace.telemetry import broker_metrics, gateway_metrics, process_metrics

SECTIONS = {
    "Broker": broker_metrics.ALL,
    "REST and gRPC": gateway_metrics.ALL,
    "Processes": process_metrics.ALL,
}
BY_NAME = {metric.name: metric for section in SECTIONS.values() for metric in section}
SERIES = frozenset(name for metric in BY_NAME.values() for name in metric.series_names())
