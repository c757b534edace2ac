"""`headrace doctor`: is this machine fit to run a node with these settings? Says what to do where it is not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import machine_checks as checks
from headrace.cli.config import ConfigFile, Set, load
from headrace.cli.exit_codes import FAILURE, examples
from headrace.cli.failures import failures_told
from headrace.cli.machine_checks import Finding
from headrace.cli.options import Json
from headrace.cli.output import print_json, print_table
from headrace.model.settings import Settings

EPILOG = examples("headrace doctor", "headrace doctor --config headrace.yaml --json")
_MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


def doctor(
    config: ConfigFile = None,
    set_: Set = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", "-d", help="Default: what the settings say.")] = None,
    as_json: Json = False,
) -> None:
    """Check Python, kernel, disk, limits, ports and the data directory. Exit code 1 on problems."""
    pairs = [*(set_ or []), *([f"log.dirs={data_dir}"] if data_dir is not None else [])]
    settings = load(config, pairs).settings
    with failures_told():
        findings = list(examine(settings))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(
            ("", "check", "found", "what to do"),
            [(_MARKS[one.status], one.name, one.found, one.advice) for one in findings],
        )
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(FAILURE)


def examine(settings: Settings) -> Iterator[Finding]:
    """All findings for these settings, the cheap ones first."""
    plain: list[Callable[[], Finding]] = [
        checks.python_version,
        checks.bytecode_cache,
        checks.native_libraries,
        checks.kernel,
        checks.open_files,
        checks.memory,
    ]
    for check in plain:
        yield check()
    if settings.runs_etcd:
        yield checks.etcd(settings)
    for listener in settings.listeners:
        yield checks.port(listener)
    if settings.in_memory:
        return
    directory = Path(settings.data_dir)
    usable = checks.writable(directory)
    yield usable
    if usable.status != "problem":
        yield checks.file_system(directory)
        yield checks.free_space(directory)
        yield checks.sync_latency(directory)
        yield from checks.data_directory(directory, settings)
