"""Errors of a pipeline file, with their lines."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.model.errors import InvalidConfig
from headrace.pipeline.definition import FieldPath

_PLACE = "headrace_place"  # attribute of an exception


@dataclass(frozen=True, slots=True)
class Problem:
    line: int  # from 1; 0 for the whole file
    text: str

    def said(self, file: str) -> str:
        return f"{file}:{self.line}: {self.text}" if self.line else f"{file}: {self.text}"


class InvalidPipelineError(InvalidConfig):
    """A pipeline file is invalid. Contains all problems, not only the first."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        ordered = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(problem.said(file) for problem in ordered))
        self.file = file
        self.problems = tuple(ordered)


class SchemaMistake(InvalidConfig):
    """A schema is invalid, at a line of its own text; 0 if unknown."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


@contextmanager
def concerning(*place: str) -> Iterator[None]:
    """Attaches this part of the file to exceptions. The innermost of nested contexts applies."""
    try:
        yield
    except Exception as error:
        if place_of(error) is None:
            setattr(error, _PLACE, place)
        raise


def place_of(error: BaseException) -> FieldPath | None:
    return getattr(error, _PLACE, None)
