"""Finds the runnable examples in a Markdown page. Reads text; runs nothing.

A fence whose info string says `run` is an example:

    ```python run        a program; a ```text fence right after it holds what it prints
    ```console run       `$ command` lines (`> ` continues one), each followed by what it prints
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(?P<info>\w[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fence:
    info: tuple[str, ...]
    body: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Example:
    language: str  # "python" or "console"
    source: str
    expected: str | None  # None: any output will do
    line: int


def examples_in(page: Path) -> list[Example]:
    text = page.read_text()
    fences = [Fence(tuple(f["info"].split()), f["body"], f.start(), f.end()) for f in FENCE.finditer(text)]
    found: list[Example] = []
    for index, fence in enumerate(fences):
        if "run" not in fence.info[1:]:
            continue
        line = text.count("\n", 0, fence.start) + 2
        if fence.info[0] == "python":
            following = fences[index + 1] if index + 1 < len(fences) else None
            found.append(Example("python", fence.body, _printed(fence, following, text), line))
        elif fence.info[0] == "console":
            found.extend(_commands(fence.body, line))
        else:
            raise ValueError(f"{page}:{line}: only python and console examples can run, not {fence.info[0]}")
    return found


def _printed(fence: Fence, following: Fence | None, text: str) -> str | None:
    if following is None or following.info != ("text",) or text[fence.end : following.start].strip():
        return None
    return following.body


def _commands(body: str, first_line: int) -> Iterator[Example]:
    command, output, line = "", "", first_line
    for number, text in enumerate(body.splitlines(), first_line):
        if text.startswith("$ "):
            if command:
                yield Example("console", command, output, line)
            command, output, line = text[2:], "", number
        elif text.startswith("> ") and command and not output:
            command += "\n" + text[2:]
        else:
            output += text + "\n"
    if command:
        yield Example("console", command, output, line)
