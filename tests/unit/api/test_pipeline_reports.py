"""Which records of the topic of reports are reports."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.pipeline_reports import PipelineReports, parsed
from headrace.api.rest.routes.pipelines import _shown

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
records = st.fixed_dictionaries({"pipeline": st.sampled_from(["a", "b"]) | json_values, "at_ms": json_values}).map(
    orjson.dumps
)


def a_report(name: str, at_ms: int) -> bytes:
    return orjson.dumps({"pipeline": name, "at_ms": at_ms})


@given(st.lists(records | json_values.map(orjson.dumps) | st.binary(max_size=20), max_size=8))
def test_whatever_a_record_holds_reports_can_be_shown(values):
    pipelines = PipelineReports(None)  # type: ignore[arg-type]  # asks no cluster here
    for value in [*values, a_report("a", 5), None]:
        pipelines._note(value)
    assert "a" in pipelines._newest
    for report in pipelines._newest.values():
        assert _shown(report)["seconds_ago"] >= 0


@pytest.mark.parametrize("at_ms", ["5", 1.5, True, None, -1, 2**63, [1]])
def test_a_report_whose_time_is_no_whole_number_is_ignored(at_ms):
    assert parsed(orjson.dumps({"pipeline": "a", "at_ms": at_ms})) is None


def test_an_older_report_does_not_replace_a_newer_one():
    pipelines = PipelineReports(None)  # type: ignore[arg-type]
    for at_ms in (3, 5, 4):
        pipelines._note(a_report("a", at_ms))
    assert pipelines._newest["a"]["at_ms"] == 5
