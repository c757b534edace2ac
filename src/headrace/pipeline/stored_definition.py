"""Reads a pipeline's definition from its file or from the state directory.

A pipeline's definition as it was when it was started: the text of its file and of the schema files that it names.

The state directory keeps it, and every start of the worker reads it from there. An edit takes effect with the next
`headrace pipeline start`, and never halfway, after a crash.
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
    file: str  # where the text was read from
    text: str
    schemas: dict[str, str]  # by the names under which the text has them

    def pipeline(self) -> Pipeline:
        """InvalidPipelineError with everything that is wrong with it."""
        return _parsed(Path(self.file), self.text, SchemaFiles(Path(self.file).parent, self.schemas))


def read_definition(path: Path) -> tuple[Definition, Pipeline]:
    """Each file is read once, so that what was checked is what is kept."""
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
