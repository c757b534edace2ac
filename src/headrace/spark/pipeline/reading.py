"""A pipeline from its file, whichever kind that is."""

from pathlib import Path

from headrace.spark.pipeline.problems import PipelineRefused, Problem
from headrace.spark.pipeline.python_file import read_python_pipeline
from headrace.spark.pipeline.spec import Pipeline
from headrace.spark.pipeline.yaml_file import read_pipeline


def read_any(path: Path) -> Pipeline:
    match path.suffix:
        case ".py":
            return read_python_pipeline(path)
        case ".yaml" | ".yml":
            return read_pipeline(path)
        case _:
            raise PipelineRefused(str(path), [Problem(0, "a pipeline is a .yaml or a .py file")])
