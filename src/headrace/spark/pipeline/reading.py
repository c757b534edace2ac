"""A pipeline from its file, whichever kind that is, or from the definition that a state directory keeps."""

from pathlib import Path

from headrace.spark.pipeline.definition import read_definition, stored_pipeline
from headrace.spark.pipeline.spec import Pipeline


def read_any(path: Path) -> Pipeline:
    return stored_pipeline(path) if path.suffix == ".json" else read_definition(path)[1]
