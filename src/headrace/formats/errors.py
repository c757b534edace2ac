"""Why a record's value is not a row."""

from typing import Any

SHOWN_CHARACTERS_MAX = 100  # of a value, in an error: it ends in headers, tables and logs


class DoesNotDecode(Exception):
    """The bytes of a record are not what the schema says."""


class Misfit(Exception):
    """A value that its column cannot hold. Without a text, it is that the value has another type."""


def shown(value: Any) -> str:
    """A value in an error, bounded and without characters that no UTF-8 can encode."""
    try:
        text = repr(value)
    except Exception:  # a repr of whatever a decoder returned: the error must name something
        text = type(value).__name__
    return text[:SHOWN_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()


class Misfits(dict[int, str]):
    """The first error of each row that has one."""

    def add(self, row: int, path: str, why: str) -> None:
        self.setdefault(row, f"{path}: {why}" if path else why)
