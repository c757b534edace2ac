"""What an operator sees of pipelines: plots in a terminal, and text for Prometheus."""

from dataclasses import asdict

import pytest

from headrace.cli.pipeline.status import sparkline
from headrace.pipeline.metrics import ALL, families
from headrace.pipeline.progress import (
    FAILED,
    FENCED,
    RESTARTING,
    RUNNING,
    STALLED,
    STOPPED,
    LastExit,
    Progress,
    progress_of,
    standing,
)
from headrace.process.restart_policy import TAKEN_OVER
from headrace.telemetry.prometheus import TEXT, render


def progress(**fields) -> Progress:
    return Progress(**(asdict(progress_of("p", {}, at_ms=1_500)) | fields))


def test_totals_grow_and_a_repeated_batch_counts_once():
    first = progress(batch=0, rows_in=10, rows_out=8, dead_letters=2, late_rows=1).after(None)
    idle = progress(batch=0).after(first)
    second = progress(batch=1, rows_in=5, rows_out=5).after(idle)
    assert (second.rows_in_total, second.rows_out_total) == (15, 13)
    assert (second.dead_letters_total, second.late_rows_total, second.batches_total) == (2, 1, 2)


def test_lag_in_seconds_is_the_age_of_what_the_slowest_source_has_read():
    spark = {
        "observedMetrics": {"headrace_read_a": {"newest_ms": 4_000}, "headrace_read_b": {"newest_ms": 7_500}},
        "sources": [{"endOffset": '{"t": {"0": 1}}', "latestOffset": '{"t": {"0": 3}}'}],
    }
    assert progress_of("p", spark, at_ms=10_000).lag_s == 6.0
    spark["sources"] = []
    assert progress_of("p", spark, at_ms=10_000).lag_s == 0.0, "nothing waits"


def test_what_nobody_counted_is_what_spark_says_of_each_topic_once():
    branch = {"numInputRows": 7, "endOffset": '{"t": {"0": 1}}'}
    other = {"numInputRows": 2, "endOffset": '{"u": {"0": 1}}'}
    assert progress_of("p", {"sources": [branch, branch, other]}, at_ms=0).rows_in == 9


def test_a_progress_of_an_earlier_version_is_still_read():
    known = progress(batch=3).to_json()
    del known["state"]
    assert Progress.from_json(known) == progress(batch=3)


def test_how_a_process_ended_says_how_its_pipeline_stands():
    common = {"newest": None, "started_ms": 5, "now_ms": 6, "stalled_after_ms": 9}
    assert standing(is_held=False, ended=LastExit(TAKEN_OVER, 6), **common) == FENCED
    assert standing(is_held=False, ended=LastExit(1, 6), **common) == FAILED
    assert standing(is_held=True, ended=LastExit(1, 6), **common) == RESTARTING
    assert standing(is_held=True, ended=LastExit(1, 4), **common) == RUNNING, "it runs again since"


def test_prometheus_gets_every_figure_of_every_pipeline():
    rows = [
        {"pipeline": "p", "state": STALLED, "progress": progress(rows_in_total=12345678901234, batch_ms=250).to_json()},
        {"pipeline": "q", "state": STOPPED, "progress": None},
    ]
    text = render(families(rows), TEXT).decode()
    lines = text.splitlines()
    assert 'headrace_pipeline_up{pipeline="p"} 1' in lines
    assert 'headrace_pipeline_up{pipeline="q"} 0' in lines
    assert 'headrace_pipeline_state{pipeline="p",state="stalled"} 1' in lines
    assert 'headrace_pipeline_state{pipeline="p",state="running"} 0' in lines
    assert 'headrace_pipeline_rows_read_total{pipeline="p"} 12345678901234' in lines
    assert 'headrace_pipeline_batch_seconds{pipeline="p"} 0.25' in lines
    assert 'headrace_pipeline_last_progress_timestamp_seconds{pipeline="p"} 1.5' in lines
    for metric in ALL:
        assert f"# TYPE {metric.name} {metric.kind}" in lines
    assert text.endswith("\n")


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([0, 0], "  "), ([0, 1, 8], " ▁█"), ([5], "█"), (range(1, 9), "▁▂▃▄▅▆▇█"), ([9] * 50, "█" * 40)],
)
def test_a_sparkline_is_as_high_as_its_values(values, drawn):
    assert sparkline(list(values)) == drawn
