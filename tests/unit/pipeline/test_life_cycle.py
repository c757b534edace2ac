"""The pure parts of a pipeline's life: what progress means, when it is started again, who holds it."""

import json
from pathlib import Path

import pytest

from headrace.pipeline.definition import Format, SinkKind, Watermark
from headrace.pipeline.errors import InvalidPipelineError
from headrace.pipeline.progress import RUNNING, STALLED, STOPPED, Progress, progress_of, standing
from headrace.pipeline.python_api import read_python_pipeline
from headrace.pipeline.state import AlreadyRunning, PipelineState, all_states
from headrace.process.restart_policy import FIRST_PAUSE_S, PAUSE_MAX_S, WELL_AFTER_S, RestartPolicy

SPARK = {
    "batchId": 7,
    "durationMs": {"triggerExecution": 250},
    "observedMetrics": {
        "headrace_read_orders": {"count": 100, "newest_ms": 1_000},
        "headrace_rows": {"count": 90},
        "headrace_dead_letters": {"count": 10},
    },
    "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 1000, "numRowsDroppedByWatermark": 3}],
    "sources": [
        {
            "numInputRows": 200,  # of two branches
            "endOffset": json.dumps({"orders": {"0": 10, "1": 20}, "#ids": {"orders": "c447f544"}}),
            "latestOffset": json.dumps({"orders": {"0": 15, "1": 20}}),
        }
    ],
}


def test_progress_says_what_an_operator_wants_to_know() -> None:
    progress = progress_of("p", SPARK, at_ms=1_000)
    assert (progress.batch, progress.rows_in, progress.rows_in_per_s) == (7, 100, 400.0)
    assert (progress.rows_out, progress.dead_letters, progress.late_rows) == (90, 10, 3)
    assert (progress.batch_ms, progress.lag_records, progress.state_rows) == (250, 5, 5)
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_an_empty_progress_is_no_mistake() -> None:
    assert progress_of("p", {}, at_ms=0).rows_in == 0


@pytest.mark.parametrize(
    ("held", "at_ms", "now_ms", "said"),
    [(False, 0, 0, STOPPED), (True, 1_000, 2_000, RUNNING), (True, 1_000, 70_000, STALLED)],
)
def test_no_progress_for_long_is_a_stall(held: bool, at_ms: int, now_ms: int, said: str) -> None:
    progress = progress_of("p", SPARK, at_ms)
    assert standing(is_held=held, newest=progress, started_ms=0, now_ms=now_ms, stalled_after_ms=60_000) == said


def test_a_pipeline_that_never_told_anything_stalls_too() -> None:
    assert standing(is_held=True, newest=None, started_ms=0, now_ms=61_000, stalled_after_ms=60_000) == STALLED


def test_pauses_double_and_begin_anew_after_a_good_run() -> None:
    restarts, pauses = RestartPolicy(), []
    for _ in range(8):
        again = restarts.after(1, ran_s=5)
        assert again is not None
        pause_s, restarts = again
        pauses.append(pause_s)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == PAUSE_MAX_S
    again = restarts.after(1, ran_s=WELL_AFTER_S)
    assert again is not None
    assert again[0] == FIRST_PAUSE_S


@pytest.mark.parametrize("exit_code", [0, 2])
def test_what_is_done_or_makes_no_sense_is_not_started_again(exit_code: int) -> None:
    assert RestartPolicy().after(exit_code, ran_s=1) is None


def test_one_copy_holds_a_pipeline(tmp_path: Path) -> None:
    state, same = PipelineState("p", tmp_path), PipelineState("p", tmp_path)
    assert state.holder() is None
    with state.held():
        assert same.holder() is not None
        with pytest.raises(AlreadyRunning, match="headrace pipeline stop p"), same.held():
            pass
    assert same.holder() is None


def test_what_is_kept_survives_and_can_be_forgotten(tmp_path: Path) -> None:
    state = PipelineState("p", tmp_path)
    state.make()
    state.checkpoint.mkdir()
    state.write("progress", {"a": 1})
    assert [one.name for one in all_states(tmp_path)] == ["p"]
    assert PipelineState("p", tmp_path).read("progress") == {"a": 1}
    state.forget()
    assert (state.read("progress"), state.checkpoint.exists()) == (None, False)


PYTHON = """\
from headrace.pipeline.python_api import pipeline, topic

@pipeline(
    orders=topic("orders", format="json", schema="id bigint", watermark="at 5 seconds"),
    sink=topic("totals", key="id"),
    dead_letters="dead",
)
def totals(orders):
    return orders
"""


def test_a_decorated_function_is_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "totals.py"
    file.write_text(PYTHON)
    pipeline = read_python_pipeline(file)
    assert (pipeline.name, pipeline.sink.kind, pipeline.sink.target) == ("totals", SinkKind.TOPIC, "totals")
    assert pipeline.sources[0].decoding.format is Format.JSON
    assert pipeline.function(orders=5) == 5
    assert pipeline.sources[0].watermark == Watermark(column="at", delay="5 seconds")


def test_python_can_say_what_yaml_can(tmp_path: Path) -> None:
    (tmp_path / "orders.ddl").write_text("id bigint")
    file = tmp_path / "totals.py"
    changed = PYTHON.replace('schema="id bigint"', 'schema_file="orders.ddl", options={"failOnDataLoss": False}')
    file.write_text(changed.replace('dead_letters="dead"', 'stalled_after_triggers=3, spark={"spark.a": 2}'))
    pipeline = read_python_pipeline(file)
    assert (pipeline.stalled_after_triggers, pipeline.spark, pipeline.dead_letters) == (3, {"spark.a": "2"}, None)
    orders = pipeline.sources[0]
    assert (orders.decoding.schema, orders.options) == ("id bigint", {"failOnDataLoss": "false"})
    assert (pipeline.trigger, pipeline.file) == ("1 second", str(file))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("def totals(orders)", "def totals(order)"), ":8: totals must have a parameter for each source (orders)"),
        (("def totals(orders)", "def totals()"), "unexpected keyword argument 'orders'"),
        (('sink=topic("totals", key="id")', "sink={}"), "exactly one of topic"),
        (("@pipeline(", "dict("), "no function is marked"),
        (("return orders", "return ("), ":9: SyntaxError"),
        (('format="json"', 'format="yaml"'), ":4: format must be one of"),
        (("watermark=", "watermarks="), ":4: source orders has no key 'watermarks'; did you mean 'watermark'?"),
        (('format="json"', 'format="json", starting="soon"'), ":4: starting must be"),
        (('schema="id bigint", ', ""), ":4: format json needs a schema"),
        (('schema="id bigint"', 'schema_file="nowhere.ddl"'), "nowhere.ddl cannot be read"),
        (('"totals", key="id"', '"orders", key="id"'), ":5: orders is both a source and the sink"),
        (('dead_letters="dead"', 'dead_letters="dead", trigger="often"'), ":6: trigger must be"),
        (('dead_letters="dead"', 'dead_letters="dead", stalled_after_triggers=0'), ":6: stalled_after_triggers must"),
        (("@pipeline(", "@pipeline(\n    name='a b',"), ":4: invalid pipeline name"),
        (("@pipeline(", "@pipeline(\n    nmae='a b',"), ":4: source nmae must be a mapping"),
    ],
)
def test_a_mistake_in_python_is_said_plainly(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    file = tmp_path / "totals.py"
    file.write_text(PYTHON.replace(*change))
    with pytest.raises(InvalidPipelineError) as refused:
        read_python_pipeline(file)
    assert said in str(refused.value)
