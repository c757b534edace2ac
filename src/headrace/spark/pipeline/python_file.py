"""The documented import path of pipelines in Python files. The code is in `headrace.pipeline.python_api`."""

from headrace.pipeline.python_api import pipeline, table, topic

__all__ = ["pipeline", "table", "topic"]
