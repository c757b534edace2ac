"""Catalog of all metrics: those of a node, and those of `headrace pipeline metrics` and `headrace archive metrics`.

The reference page, the dashboards and the alert rules are checked against it.
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
