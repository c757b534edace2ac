"""The golden files: one for each API, in text that a reviewer can read.

    == v3 ==
    == v3, on a slow disk ==          title of a script; each has a broker of its own
    - unknown topic                   a step
    > 0000…                           a frame that the client sent; several were sent in one write
    < 0000…                           a frame that came back
    = {topics=[…]}                    the same for people: zeros, nulls and empty fields are left out
    ~ 500                             so many milliseconds passed
    x                                 the broker closed the connection
    "                                 as in the version before, but for the version in the requests
    ="                                reads as in the version before

Frames are without their size. A response of more than RESPONSE_BYTES_MAX is represented by its size and the first half
of its SHA-256.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from struct import unpack_from

from tests.golden.conversation import Closed, Event, Received, Sent, Step, Waited
from tests.golden.messages import label, read_response, text

FOLDER = Path(__file__).parent / "answers"
RESPONSE_BYTES_MAX = 200
SHOWN_CHARS_MAX = 600
SAME = '"'
READS_THE_SAME = '="'


def path_of(api: int) -> Path:
    return FOLDER / f"{label(api)}.txt"


def heading(version: int, title: str) -> str:
    return f"v{version}, {title}" if title else f"v{version}"


def lines_of(steps: Iterable[Step]) -> list[str]:
    lines = []
    for step in steps:
        lines.append(f"- {step.name}")
        asked = [event.data for event in step.events if isinstance(event, Sent)]
        for event in step.events:
            lines += _lines(event, asked)
    return lines


def _lines(event: Event, asked: Sequence[bytes]) -> list[str]:
    match event:
        case Sent(data):
            return [f"> {data.hex()}"]
        case Received(data) if len(data) > RESPONSE_BYTES_MAX:
            return [f"< {len(data)} bytes, SHA-256 {sha256(data).hexdigest()[:32]}", f"= {_shown(data, asked)}"]
        case Received(data):
            return [f"< {data.hex()}", f"= {_shown(data, asked)}"]
        case Waited(milliseconds):
            return [f"~ {milliseconds}"]
        case Closed():
            return ["x"]


def _shown(response: bytes, asked: Sequence[bytes]) -> str:
    read = decoded(response, asked)
    shown = text(read) if read is not None else "?"
    return shown if len(shown) <= SHOWN_CHARS_MAX else f"{shown[:SHOWN_CHARS_MAX]}..."


def decoded(response: bytes, asked: Iterable[bytes]) -> dict[str, object] | None:
    """None if it is no response in the version of its request: ApiVersions may answer in an older one."""
    (number,) = unpack_from(">i", response)
    for request in asked:
        if len(request) >= 8 and unpack_from(">i", request, 4)[0] == number:
            api, version = unpack_from(">hh", request)
            try:
                return read_response(api, version, response)
            except (AssertionError, ImportError, AttributeError, KeyError):
                return read_response(api, 0, response) if api == 18 else None
    return None


def write(api: int, sections: Iterable[tuple[str, Sequence[str]]]) -> None:
    lines = []
    before: dict[str, dict[str, list[str]]] = {}  # by title
    for name, content in sections:
        version, title = _version_and_title(name)
        steps = _steps_of(content)
        lines.append(f"== {name} ==")
        known = before.get(title, {})
        for step, said in steps.items():
            older = _of_version(known.get(step, ()), api, version)
            lines += [f"- {step}", *([SAME] if older == said else _shortened(said, older))]
        lines.append("")
        before[title] = steps
    path_of(api).write_text("\n".join(lines))


def read(api: int) -> dict[str, dict[str, list[str]]]:
    """The lines of each step, by the heading of its section and by its name."""
    sections: dict[str, dict[str, list[str]]] = {}
    before: dict[str, dict[str, list[str]]] = {}
    name, content = "", list[str]()
    for line in [*path_of(api).read_text().splitlines(), "== end =="]:
        if not line.startswith("== "):
            content += [line] if line else []
            continue
        if name:
            version, title = _version_and_title(name)
            steps = _steps_of(content)
            for step, said in steps.items():
                older = _of_version(before.get(title, {}).get(step, ()), api, version)
                steps[step] = older if said == [SAME] else _restored(said, older)
            sections[name] = before[title] = steps
        name, content = line.removeprefix("== ").removesuffix(" =="), []
    return sections


def _shortened(said: list[str], older: list[str]) -> list[str]:
    """Without what reads for people as it did in the version before."""
    if _kinds(said) != _kinds(older):
        return said
    pairs = zip(said, older, strict=True)
    return [READS_THE_SAME if line == before and line.startswith("= ") else line for line, before in pairs]


def _restored(said: list[str], older: list[str]) -> list[str]:
    return [older[number] if line == READS_THE_SAME else line for number, line in enumerate(said)]


def _kinds(lines: list[str]) -> list[str]:
    return [line[0] for line in lines]


def _version_and_title(name: str) -> tuple[int, str]:
    version, _, title = name.partition(", ")
    return int(version.removeprefix("v")), title


def _steps_of(lines: Iterable[str]) -> dict[str, list[str]]:
    steps: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("- "):
            said = steps[line.removeprefix("- ")] = []
        else:
            said.append(line)
    return steps


def _of_version(said: Iterable[str], api: int, version: int) -> list[str]:
    """The same with `version` in the headers of the requests of this API that are in its own version."""
    key, lines = f"> {api:04x}", list(said)
    older = {line[6:10] for line in lines if line.startswith(key)}
    if len(older) != 1:
        return lines
    return [f"{key}{version:04x}{line[10:]}" if line.startswith(key) else line for line in lines]
