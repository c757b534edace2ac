"""Reads a pipeline's definition from its file, or from the state directory.

A stored definition contains the text of the pipeline file and of its schema files as of the last `headrace pipeline
start`. Every start of the worker reads it, so an edit of the files takes effect with the next `start`, and never with
a restart after a crash.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.definition import Pipeline
from headrace.pipeline.errors import InvalidPipelineError, Problem
from headrace.pipeline.parser import SchemaFiles, parse_pipeline
from headrace.pipeline.python_api import parse_python_pipeline
from headrace.pipeline.state import PipelineState

STORED = "definition"


@dataclass(frozen=True, slots=True)
class Definition:
    file: str  # path of the pipeline file
    text: str
    schemas: dict[str, str]  # by the names in the pipeline file

    def pipeline(self) -> Pipeline:
        """Parses the definition. Raises InvalidPipelineError with all problems."""
        return _parsed(Path(self.file), self.text, SchemaFiles(Path(self.file).parent, self.schemas))


def read_definition(path: Path) -> tuple[Definition, Pipeline]:
    """Reads and parses a pipeline file. Each file is read once, so that the checked texts are the stored ones."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPipelineError(str(path), [Problem(0, f"cannot be read: {error}")]) from error
    files = SchemaFiles(path.absolute().parent)
    pipeline = _parsed(path, text, files)
    return Definition(str(path.absolute()), text, dict(files.read)), pipeline


def store(state: PipelineState, definition: Definition) -> Path:
    state.write(STORED, asdict(definition), durable=True)
    return state.folder / f"{STORED}.json"


def stored_pipeline(path: Path) -> Pipeline:
    known: Any = PipelineState(path.parent.name, path.parent.parent).read(STORED)
    if known is None:
        raise InvalidPipelineError(str(path), [Problem(0, "holds no definition; start the pipeline from its file")])
    return Definition(**known).pipeline()


def _parsed(path: Path, text: str, files: SchemaFiles) -> Pipeline:
    match path.suffix:
        case ".py":
            return parse_python_pipeline(text, path, files)
        case ".yaml" | ".yml":
            return parse_pipeline(text, str(path), files=files)
        case _:
            raise InvalidPipelineError(str(path), [Problem(0, "a pipeline is a .yaml or a .py file")])


def read_any(path: Path) -> Pipeline:
    return stored_pipeline(path) if path.suffix == ".json" else read_definition(path)[1]
