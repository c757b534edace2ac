"""`headrace doctor`: checks whether this host can run a node; with --url, finds the bottleneck of a running node.

`telemetry/diagnosis.py` has the rules for a running node.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common.errors import fail, fail_usage, failures_told
from headrace.cli.common.exit_codes import FAILURE, UNREACHABLE, examples
from headrace.cli.common.options import Json
from headrace.cli.common.output import print_json, print_table
from headrace.cli.config import ConfigFile, Set, load
from headrace.cli.doctor import checks
from headrace.cli.doctor.checks import Finding
from headrace.config.settings import Settings
from headrace.telemetry.diagnosis import diagnose
from headrace.telemetry.prometheus import Interval, Scrape, parse

EPILOG = examples(
    "headrace doctor",
    "headrace doctor --config headrace.yaml --json",
    "headrace doctor --url http://localhost:8080   (bottleneck of a running node)",
)
_MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
SCRAPE_SECONDS_MAX = 10.0


def doctor(
    config: ConfigFile = None,
    set_: Set = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", "-d", help="Default: the configured one.")] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Check a running node by its REST or metrics address instead."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=600, help="With --url: duration.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Check whether this host can run a node, or with --url find the bottleneck of a running node.

    Checks Python, libraries, kernel, limits, memory, ports, disk space, sync latency and the data directory, and prints
    remedies. Exit code 1 on problems.
    """
    if url is not None:
        findings = [Finding(*one) for one in diagnose(watched(url, seconds))]
    else:
        pairs = [*(set_ or []), *([f"log.dirs={data_dir}"] if data_dir is not None else [])]
        settings = load(config, pairs).settings
        with failures_told():
            findings = list(examine(settings))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(
            ("", "check", "found", "remedy"),
            [(_MARKS[one.status], one.name, one.found, one.advice) for one in findings],
        )
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(FAILURE)


def watched(url: str, seconds: float) -> Interval:
    """Scrapes a node's metrics at the beginning and at the end of the interval."""
    before, began = _scrape(url), time.monotonic()
    time.sleep(seconds)
    after = _scrape(url)
    return Interval(before, after, time.monotonic() - began)


def _scrape(url: str) -> Scrape:
    import urllib.request  # half of the start time of this command

    where = url if url.endswith("/metrics") else f"{url.rstrip('/')}/metrics"
    if not where.startswith(("http://", "https://")):
        fail_usage(f"{url} is not an HTTP URL", "use http://HOST:PORT, e.g. http://localhost:8080")
    try:
        with urllib.request.urlopen(where, timeout=SCRAPE_SECONDS_MAX) as answer:
            return parse(answer.read().decode())
    except (OSError, ValueError) as error:
        fail(f"{where} does not respond: {error}", "check that the node serves --http or --metrics there", UNREACHABLE)


def examine(settings: Settings) -> Iterator[Finding]:
    """Yields the findings for these settings, cheap checks first."""
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
        yield checks.kernel_syncs(settings)
        yield from checks.data_directory(directory, settings)
