"""Commands that need more than the package itself brings say what to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli.failures import fail


@contextmanager
def extras_needed(what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{what} need {error.name}, which is not installed", "pip install 'headrace[spark,lake]'")
