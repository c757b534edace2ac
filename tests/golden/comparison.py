"""What differs between what was recorded and what the broker says now, in words."""

from collections.abc import Iterator, Mapping, Sequence

from tests.golden.golden_file import decoded
from tests.golden.messages import difference, label

Steps = Mapping[str, list[str]]  # the lines of each step

SHOWN_CHARS_MAX = 300


def differences(api: int, heading: str, recorded: Steps, said: Steps) -> Iterator[str]:
    """One text for each step that is not as it was recorded."""
    for step in [*recorded, *(step for step in said if step not in recorded)]:
        place = f"{label(api)} {heading}, {step!r}"
        if step not in said:
            yield f"{place}: is recorded, and no script has it"
        elif step not in recorded:
            yield f"{place}: is not recorded"
        elif _bytes_of(recorded[step]) != _bytes_of(said[step]):
            yield f"{place}: {_difference(recorded[step], said[step])}"


def _bytes_of(lines: Sequence[str]) -> list[str]:
    """Without what is there for people: it may change with the library that knows the names of fields."""
    return [line for line in lines if not line.startswith("= ")]


def _difference(recorded: Sequence[str], said: Sequence[str]) -> str:
    before, now = _bytes_of(recorded), _bytes_of(said)
    number = next((number for number, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), None)
    if number is None:
        more = before[len(now) :] or now[len(before) :]
        what = {"<": "a response", "x": "the close", "~": "a wait", ">": "a request"}[more[0][0]]
        return f"{what} {'is missing' if len(before) > len(now) else 'is new'}: {_short(more[0])}"
    old, new = before[number], now[number]
    if old[0] == new[0] == ">":
        return f"another request, because of an earlier response or its script: {_short(old)}, now {_short(new)}"
    if old[0] != new[0]:
        meanings = {
            "<": "a response",
            "x": "the close of the connection",
            "~": "nothing until time passes",
            ">": "a request",
        }
        return f"{meanings[old[0]]} recorded, {meanings[new[0]]} now: {_short(old)}, now {_short(new)}"
    return _field_that_differs(_shown(recorded, number), _shown(said, number), old, new, now)


def _field_that_differs(shown: str, shown_now: str, old: str, new: str, lines: Sequence[str]) -> str:
    requests = [bytes.fromhex(line[2:]) for line in lines if line.startswith("> ")]
    if "SHA-256" not in old and "SHA-256" not in new:
        one = decoded(bytes.fromhex(old[2:]), requests)
        other = decoded(bytes.fromhex(new[2:]), requests)
        if one is not None and other is not None:
            field = difference(one, other) or "the same fields in other bytes"
            return f"{field}\n    recorded {_short(shown)}\n    now      {_short(shown_now)}"
    at = next((number for number, pair in enumerate(zip(shown, shown_now, strict=False)) if pair[0] != pair[1]), 0)
    at = max(at - SHOWN_CHARS_MAX // 2, 0)
    return (
        f"{_short(old)}, now {_short(new)}\n    recorded …{_short(shown[at:])}\n    now      …{_short(shown_now[at:])}"
    )


def _shown(lines: Sequence[str], number: int) -> str:
    """The line for people below the line of bytes with this number."""
    position = [index for index, line in enumerate(lines) if not line.startswith("= ")][number] + 1
    return lines[position][2:] if position < len(lines) and lines[position].startswith("= ") else ""


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
