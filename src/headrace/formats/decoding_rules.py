"""Decoding options of a source that relax the strict default rules. Pure; performs no I/O.

`docs/reference/decoding.md` lists them; `tests/unit/formats/test_decoding_rules.py` covers that table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from headrace.model.errors import InvalidConfig

JSON, CSV, AVRO, PROTOBUF = "json", "csv", "avro", "protobuf"
TOMBSTONES, TIMESTAMPS, EXCESS_DIGITS = "tombstones", "timestamps", "excess_digits"
NUMBERS, STRINGS = "numbers", "strings"
SEPARATOR, QUOTE, ESCAPE, NULL_VALUE = "sep", "quote", "escape", "nullValue"

_CHOICES: Mapping[str, tuple[str, ...]] = {  # option → values; the first one is the default
    TOMBSTONES: ("error", "nulls"),
    TIMESTAMPS: ("text", "seconds", "milliseconds", "microseconds"),
    EXCESS_DIGITS: ("error", "round"),
    NUMBERS: ("plain", "quoted"),
    STRINGS: ("text", "json"),
}
_CHARACTERS: Mapping[str, str] = {SEPARATOR: ",", QUOTE: '"', ESCAPE: '"'}
OPTIONS: Mapping[str, tuple[str, ...]] = {
    JSON: (TOMBSTONES, TIMESTAMPS, EXCESS_DIGITS, NUMBERS, STRINGS),
    CSV: (TOMBSTONES, TIMESTAMPS, EXCESS_DIGITS, SEPARATOR, QUOTE, ESCAPE, NULL_VALUE),
    AVRO: (TOMBSTONES, EXCESS_DIGITS),
    PROTOBUF: (TOMBSTONES, EXCESS_DIGITS),
}
_UNITS_US = {"seconds": 1_000_000, "milliseconds": 1000, "microseconds": 1}


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """Strictness of decoding. The defaults allow nothing that would change a value."""

    tombstones_are_nulls: bool = False
    timestamp_unit_us: int | None = None  # unit of numbers in timestamp columns; None: numbers are rejected
    rounds: bool = False
    quoted_numbers: bool = False
    json_in_strings: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    null_text: str = ""

    @property
    def tombstone_error(self) -> str | None:
        """Error of a record without a value; None if it becomes a row of nulls."""
        allow = f"allow it with {TOMBSTONES}: nulls"
        return None if self.tombstones_are_nulls else f"the record has no value (a tombstone); {allow}"


STRICT = DecodingRules()


def rules_of(format_: str, given: Mapping[str, str]) -> DecodingRules:
    """Parses options. Raises InvalidConfig for an option that the format does not have, and for an invalid value."""
    for name, value in given.items():
        _check(format_, name, value)
    if len({given.get(name, default) for name, default in _CHARACTERS.items() if name != ESCAPE}) != 2:
        raise InvalidConfig("decode_options: sep and quote are the same character")
    return DecodingRules(
        tombstones_are_nulls=given.get(TOMBSTONES) == "nulls",
        timestamp_unit_us=_UNITS_US.get(given.get(TIMESTAMPS, "")),
        rounds=given.get(EXCESS_DIGITS) == "round",
        quoted_numbers=given.get(NUMBERS) == "quoted",
        json_in_strings=given.get(STRINGS) == "json",
        separator=given.get(SEPARATOR, ","),
        quote=given.get(QUOTE, '"'),
        escape=given.get(ESCAPE, '"'),
        null_text=given.get(NULL_VALUE, ""),
    )


def _check(format_: str, name: str, value: str) -> None:
    known = OPTIONS.get(format_, ())
    if name not in known:
        near = get_close_matches(name, known, n=1)
        there = f"there are {', '.join(known)}" if known else "it has none"
        raise InvalidConfig(
            f"decode_options: format {format_} has no option {name!r}; {f'did you mean {near[0]}?' if near else there}"
        )
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        raise InvalidConfig(f"decode_options: {name} is one of {', '.join(choices)}, not {value!r}")
    if name in _CHARACTERS and (len(value) != 1 or value in "\r\n"):
        raise InvalidConfig(f"decode_options: {name} is a single character, not {value!r}")
