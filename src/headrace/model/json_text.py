"""The source text of parts of a JSON document, unchanged: numbers, escapes, spaces and repeated keys.

A parser's values cannot be written back unchanged: `1.10`, `-0` and a number of thirty digits each have one value and
several spellings. Pure; finds positions with the standard library's parser, which is compiled.
"""

import json
import re
from collections.abc import Callable

_decode = json.JSONDecoder().raw_decode
_PUNCTUATION = re.compile(r"[ \t\n\r:,]*")

Name = str | int


class TooDeep(ValueError):
    """The document is nested deeper than the parser allows; the limit is Python's recursion limit."""


class JsonText:
    """A lazily sliced document: `text["value"]` and `rows[3]` are parts of it. It must be valid JSON.

    Nothing is scanned before a part is requested, so that messages of plain strings cost nothing.
    """

    __slots__ = ("_get", "_parts")

    def __init__(self, get: Callable[[], str]) -> None:
        self._get = get
        self._parts: dict[Name, str] | None = None

    def __getitem__(self, name: Name) -> "JsonText":
        return JsonText(lambda: self._part(name))

    def encoded(self) -> bytes:
        return self._get().encode()

    def _part(self, name: Name) -> str:
        if self._parts is None:
            self._parts = parts(self._get())
        return self._parts[name]


def parts(text: str) -> dict[Name, str]:
    """Returns the text of each member of an object, by its name, or of each element of an array, by its index.

    Of members with the same name the last one is used, as parsers do.
    """
    opening = _past_punctuation(text, 0)
    is_object = text[opening] == "{"
    closing = "}" if is_object else "]"
    at = _past_punctuation(text, opening + 1)
    found: dict[Name, str] = {}
    while text[at] != closing:
        name: Name = len(found)
        if is_object:
            name, at = _decode(text, at)
            at = _past_punctuation(text, at)
        end = _end(text, at)
        found[name] = text[at:end]
        at = _past_punctuation(text, end)
    return found


def _past_punctuation(text: str, start: int) -> int:
    found = _PUNCTUATION.match(text, start)
    assert found is not None, "no punctuation is a match too"
    return found.end()


def _end(text: str, start: int) -> int:
    """Returns the end of the value that starts at `start`."""
    try:
        return _decode(text, start)[1]
    except RecursionError:
        raise TooDeep("a JSON value is nested too deep; a few hundred levels are taken") from None
