"""What Prometheus is told of archives."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.archive.metrics import ALL, families
from headrace.telemetry.prometheus import TEXT, render


def standing(topic: str, guard: int | None) -> dict[str, object]:
    place = {"partition": 0, "until": 70, "lag": 30, "lost": 5, "retention_may_remove_below": guard}
    return {"topic": topic, "files": 3, "commits": 9, "partitions": [place]}


def test_every_figure_of_every_archive_is_there() -> None:
    text = render(families([standing("a", 60), standing("b", None)]), TEXT).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.name for family in found.values()} == {metric.name.removesuffix("_total") for metric in ALL}
    values = {(one.name, *one.labels.values()): one.value for family in found.values() for one in family.samples}
    assert values["headrace_archive_files", "a"] == 3
    assert values["headrace_archive_commits_total", "b"] == 9
    assert values["headrace_archive_offset", "a", "0"] == 70
    assert values["headrace_archive_lag_records", "b", "0"] == 30
    assert values["headrace_archive_lost_total", "a", "0"] == 5
    assert values["headrace_archive_guard_offset", "a", "0"] == 60
    with pytest.raises(KeyError):
        values["headrace_archive_guard_offset", "b", "0"]
