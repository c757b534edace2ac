"""Output of commands: tables, JSON, notes and progress bars."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Without a terminal, rows must not wrap: files and pipes have no width.
_PIPE_WIDTH = 400


def print_json(value: Any) -> None:
    """Prints one indented JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, numbers: int = 0
) -> None:
    """Prints a table with headings; the last `numbers` columns are right-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        right = position >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    screen = console()
    if title is not None:  # a separate line: rich would wrap a table's title to the width of its columns
        screen.print(title, style="bold")
    screen.print(table)


def note(text: str) -> None:
    """Prints a message on stderr, so that stdout has results only."""
    print(text, file=sys.stderr)


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


@contextmanager
def progress(label: str, total: int | None, *, wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr if that is a terminal; yields the function that advances it."""
    if not wanted or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda step: bar.advance(task, step)
