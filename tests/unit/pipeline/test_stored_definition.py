"""A pipeline that is started again runs as it was defined when it was started, whatever becomes of its files."""

from pathlib import Path

import pytest

from headrace.cli.pipeline.options import worker_arguments
from headrace.pipeline.errors import InvalidPipelineError
from headrace.pipeline.state import STATE_VARIABLE, PipelineState
from headrace.pipeline.stored_definition import read_any, read_definition, stored_pipeline

YAML = """\
pipeline: totals
sources:
  a: {topic: in, format: json, schema_file: a.ddl}
sink: {topic: out}
"""
PYTHON = """\
from headrace.pipeline.python_api import pipeline, topic

@pipeline(a=topic("in", format="json", schema_file="a.ddl"), sink=topic("out"))
def totals(a):
    return a.select("id", FACTOR)

FACTOR = "1"
"""


@pytest.mark.parametrize(("name", "text"), [("totals.yaml", YAML), ("totals.py", PYTHON)])
@pytest.mark.parametrize("edit", ["broken", "gone"])
def test_edit_takes_no_effect_on_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, edit: str
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "pipelines"))
    file, schema = tmp_path / name, tmp_path / "a.ddl"
    file.write_text(text)
    schema.write_text("id bigint")
    definition, pipeline = read_definition(file)
    stored = worker_arguments(PipelineState("totals"), definition, "b:1", None, None)[0]
    for one in (file, schema):
        one.write_text(": half an edit") if edit == "broken" else one.unlink()
    again = read_any(Path(stored))
    assert (again.name, again.sources, again.sink) == (pipeline.name, pipeline.sources, pipeline.sink)
    assert (again.file, again.lines) == (str(file), pipeline.lines), "errors name the file that was started"
    assert (again.function is None) == (pipeline.function is None)


def test_state_directory_without_definition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipelineError, match="holds no definition; start the pipeline"):
        stored_pipeline(tmp_path / "totals" / "definition.json")


def test_mistake_is_said_of_the_original_file(tmp_path: Path) -> None:
    file = tmp_path / "totals.yaml"
    file.write_text(YAML)
    with pytest.raises(InvalidPipelineError, match=r"totals\.yaml:3: the schema a\.ddl cannot be read"):
        read_definition(file)
