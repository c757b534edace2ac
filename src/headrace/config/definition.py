"""Definition of one config key: type, default, allowed values and documentation, as data.

Parses texts to typed values and renders them back; error messages have the allowed values. The tables of keys are in
`config/keys/`. Pure; performs no I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from headrace.model.errors import InvalidConfig

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

ConfigValue = bool | int | float | str | tuple[str, ...]


class ConfigType(IntEnum):
    """Types of config values, by DescribeConfigs' numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN, STRING, INT, SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
LONG, DOUBLE, LIST, PASSWORD = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST, ConfigType.PASSWORD


class Range(NamedTuple):
    """Accepts numbers from `low` to `high`, both included, and the single value `also`."""

    low: float | None = None
    high: float | None = None
    also: int | None = None

    def accepts(self, value: ConfigValue) -> bool:
        assert isinstance(value, (int, float)), "a range belongs to a number"
        if value == self.also:
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def describe(self) -> str:
        if self.high is None:
            text = f"at least {self.low}"
        elif self.low is None:
            text = f"at most {self.high}"
        else:
            text = f"from {self.low} to {self.high}"
        return text if self.also is None else f"{text}, or {self.also}"


class OneOf(NamedTuple):
    """Accepts one of these words; for a list, each item must be one of them."""

    words: tuple[str, ...]

    def accepts(self, value: ConfigValue) -> bool:
        return all(item in self.words for item in (value if isinstance(value, tuple) else (value,)))

    def describe(self) -> str:
        return "one of " + ", ".join(self.words)


class ReplicaPairs(NamedTuple):
    """Accepts `*`, or pairs of partition and broker, as in Kafka's throttled replica lists."""

    def accepts(self, value: ConfigValue) -> bool:
        assert isinstance(value, tuple), "replica pairs come as a list"
        return value == ("*",) or all(_is_pair(item) for item in value)

    def describe(self) -> str:
        return "* or a list of partition:broker"


class PartitionOffsets(NamedTuple):
    """Accepts pairs of partition and offset."""

    def accepts(self, value: ConfigValue) -> bool:
        assert isinstance(value, tuple), "pairs come as a list"
        return all(_is_pair(item) for item in value)

    def describe(self) -> str:
        return "a list of partition:offset"


class TableName(NamedTuple):
    """Accepts an empty text, or a lake table format and its location."""

    kinds: tuple[str, ...]

    def accepts(self, value: ConfigValue) -> bool:
        kind, _, place = str(value).partition(":")
        return value == "" or (kind in self.kinds and bool(place))

    def describe(self) -> str:
        return "empty, or " + " or ".join(f"{kind}:PATH" for kind in self.kinds)


Check = Range | OneOf | ReplicaPairs | PartitionOffsets | TableName

_NUMBER_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One config key. `default` None means that an unset key gets its value from another key or rule."""

    name: str
    type: ConfigType
    default: ConfigValue | None
    doc: str
    check: Check | None = None
    # Keys that supply the value when this one is not set, in order. For a topic config they are broker configs; some
    # are in hours or minutes (see SYNONYM_UNIT_MS in values.py).
    synonyms: tuple[str, ...] = ()
    # For broker configs: whether the key is dynamic. Every topic config is.
    dynamic: bool = False
    # Accepted but not listed by DescribeConfigs: for tests, as in Kafka.
    internal: bool = False

    def parse(self, text: str) -> ConfigValue:
        """Parses `text`. Raises InvalidConfig with the allowed values."""
        value = self._typed(text.strip())
        if self.check is not None and not self.check.accepts(value):
            raise self._refusal(text, self.check.describe() + self._hint(value))
        return value

    def render(self, value: ConfigValue) -> str:
        """Returns the canonical text of a value, which is stored, and shown by DescribeConfigs."""
        return render(value)

    @property
    def default_text(self) -> str | None:
        return None if self.default is None else render(self.default)

    @property
    def sensitive(self) -> bool:
        """Returns whether the value must not be shown or logged."""
        return self.type is ConfigType.PASSWORD

    def _typed(self, text: str) -> ConfigValue:
        match self.type:
            case ConfigType.BOOLEAN:
                lowered = text.lower()
                if lowered not in ("true", "false"):
                    raise self._refusal(text, "true or false")
                return lowered == "true"
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                return self._whole_number(text)
            case ConfigType.DOUBLE:
                return self._fraction(text)
            case ConfigType.LIST:
                items = (item.strip() for item in text.split(","))
                return tuple(dict.fromkeys(item for item in items if item))
            case _:
                return text

    def _whole_number(self, text: str) -> int:
        low, high = _NUMBER_BOUNDS[self.type]
        # int() would also accept "1_000", " 1 " and digits of other scripts, which no Kafka tool writes.
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit()):
            raise self._refusal(text, "a whole number")
        # Every LONG has at most 20 characters; a longer text is rejected without the cost of int().
        value = int(text) if len(text) <= 20 else high + 1
        if not low <= value <= high:
            raise self._refusal(text, f"a whole number from {low} to {high}")
        return value

    def _fraction(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._refusal(text, "a number") from None
        if value != value or value in (float("inf"), float("-inf")):
            raise self._refusal(text, "a finite number")
        return value

    def _hint(self, value: ConfigValue) -> str:
        if not isinstance(self.check, OneOf):
            return ""
        for item in value if isinstance(value, tuple) else (value,):
            close = nearest(str(item), self.check.words) if item not in self.check.words else None
            if close is not None:
                return f" (did you mean {close}?)"
        return ""

    def _refusal(self, text: str, wanted: str) -> InvalidConfig:
        shown = "(hidden)" if self.sensitive else repr(text)
        return InvalidConfig(f"Invalid value {shown} for configuration {self.name}: it must be {wanted}")


def broker_config(
    name: str,
    type_: ConfigType,
    default: ConfigValue | None,
    check: Check | None = None,
    *,
    doc: str,
    synonyms: tuple[str, ...] = (),
    dynamic: bool = False,
    internal: bool = False,
) -> ConfigDef:
    """Defines a broker config; `doc` comes last."""
    return ConfigDef(name, type_, default, doc, check, synonyms, dynamic, internal)


def render(value: ConfigValue) -> str:
    """Returns the canonical text of a typed value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return repr(value).replace("e+", "E")  # Java's format, since Kafka's tools compare the text
    return str(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to `name`, or None."""
    from difflib import get_close_matches  # imported only for errors

    spelled = {_spelling(candidate): candidate for candidate in known}
    close = get_close_matches(_spelling(name), spelled, n=1, cutoff=0.6)
    return spelled[close[0]] if close else None


def _spelling(name: str) -> str:
    """Normalizes dots, dashes, underscores and case, which are the most frequent differences."""
    return name.lower().replace("_", ".").replace("-", ".")


def _is_pair(text: str) -> bool:
    partition, colon, broker = text.partition(":")
    return bool(colon) and partition.isdigit() and broker.isdigit()
