"""What is wrong with a pipeline file, and on which line."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.model.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Problem:
    line: int  # from 1; 0 if it concerns the whole file
    text: str

    def said(self, file: str) -> str:
        return f"{file}:{self.line}: {self.text}" if self.line else f"{file}: {self.text}"


class PipelineRefused(InvalidConfig):
    """Every reason why a pipeline file cannot be used, not only the first."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        ordered = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(problem.said(file) for problem in ordered))
        self.file = file
        self.problems = tuple(ordered)
