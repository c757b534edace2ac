"""Decoding errors of a record's value."""

from typing import Any

SHOWN_CHARACTERS_MAX = 100  # of a value in an error message, which is stored in headers and tables and logged


class DoesNotDecode(Exception):
    """The bytes of a record do not match the schema."""


class Misfit(Exception):
    """A column cannot hold a value. Without a message the value has another type."""


def shown(value: Any) -> str:
    """Formats a value for an error message: bounded, and without characters that UTF-8 cannot encode."""
    try:
        text = repr(value)
    except Exception:  # the repr of an arbitrary value may raise
        text = type(value).__name__
    return text[:SHOWN_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()


class Misfits(dict[int, str]):
    """The first error of each row that has one."""

    def add(self, row: int, path: str, why: str) -> None:
        self.setdefault(row, f"{path}: {why}" if path else why)
