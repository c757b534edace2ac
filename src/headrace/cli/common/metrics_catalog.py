"""Every metric that some part of headrace tells Prometheus: a node's, and those of the commands that run beside it.

The reference page, the dashboards and the alert rules are checked against this list.
"""

from headrace.archive import metrics as archive_metrics
from headrace.pipeline import metrics as pipeline_metrics
from headrace.telemetry import metric_catalog

SECTIONS = {
    **metric_catalog.SECTIONS,
    "Pipelines": pipeline_metrics.ALL,  # `headrace pipeline metrics`
    "Archives": archive_metrics.ALL,  # `headrace archive metrics`
}
BY_NAME = {metric.name: metric for section in SECTIONS.values() for metric in section}
SERIES = frozenset(name for metric in BY_NAME.values() for name in metric.series_names())
