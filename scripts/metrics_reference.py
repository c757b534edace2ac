"""Writes docs/reference/metrics.md from the metrics catalog.

python scripts/metrics_reference.py > docs/reference/metrics.md
"""

from collections.abc import Iterator

from headrace.cli.common.metrics_catalog import SECTIONS
from headrace.telemetry.broker_metrics import GROUP_ROWS_SHOWN_MAX, PARTITIONS_SHOWN_MAX
from headrace.telemetry.metrics import Metric

INTRODUCTION = f"""\
# Metrics reference

Made from `headrace.cli.common.metrics_catalog` by `make docs`; do not edit. How to scrape, and what to watch, is in
[Watching a node](../operations/watching.md). [Pipelines](../guides/pipelines.md#how-it-fares) and
[archives](../guides/archive.md) run beside nodes; `headrace pipeline metrics` and `headrace archive metrics` tell how
they fare.

A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`. `part` is the process of the node: `broker`, `gateway`
or `grpc`. Series with labels that a user can multiply are limited: the {PARTITIONS_SHOWN_MAX:,} largest partitions of a
broker, and the {GROUP_ROWS_SHOWN_MAX:,} largest lags; sums count all of them, and `…_not_shown` how many were left out.
"""


def page() -> Iterator[str]:
    yield INTRODUCTION
    for section, metrics in SECTIONS.items():
        yield f"## {section}\n"
        yield "| metric | kind | labels | meaning |\n|---|---|---|---|"
        yield from map(_row, metrics)
        yield ""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


if __name__ == "__main__":
    print("\n".join(page()), end="")
