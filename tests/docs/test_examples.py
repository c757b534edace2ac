"""The examples of README and docs do what the page says, page by page, against a broker of their own."""

import doctest
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import LocalBroker
from tests.docs.examples import Example, examples_in

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNABLE = [page for page in PAGES if examples_in(page)]
# The address pages use, because it is the one readers have.
DOCUMENTED_ADDRESS = "localhost:9092"
DOCUMENTED_HTTP = "http://localhost:8080"
DOCUMENTED_GRPC = "localhost:9090"
# An example that starts Spark takes ten seconds where nothing else runs, and minutes on a machine full of tests.
EXAMPLE_TIMEOUT_S = 300
PAGE_TIMEOUT_S = 900  # a page has several of them
# Programs that are not Python packages: a page that uses one is skipped where it is not installed.
FOREIGN_PROGRAMS = ("kcat",)


@pytest.mark.timeout(PAGE_TIMEOUT_S)
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_the_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    examples = examples_in(page)
    for program in FOREIGN_PROGRAMS:
        if any(program in example.source for example in examples) and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    uses_gateway = any(
        address in example.source for example in examples for address in (DOCUMENTED_HTTP, DOCUMENTED_GRPC)
    )
    with LocalBroker(memory=True, gateway=uses_gateway) as broker:
        addresses = {DOCUMENTED_ADDRESS: broker.bootstrap}
        if uses_gateway:
            addresses |= {DOCUMENTED_HTTP: broker.http_url, DOCUMENTED_GRPC: broker.grpc_address}
        for example in examples:
            where = f"{page.relative_to(ROOT)}:{example.line}"
            output = _run(example, addresses, tmp_path, where)
            _compare(example, output, where)


def test_readme_has_examples_that_run() -> None:
    languages = {example.language for example in examples_in(ROOT / "README.md")}

    assert languages == {"python", "console"}


def _run(example: Example, addresses: dict[str, str], folder: Path, where: str) -> str:
    source = example.source
    for documented, real in addresses.items():
        source = source.replace(documented, real)
    if example.language == "python":
        command = [sys.executable, "-c", source]
    else:
        command = ["bash", "-euo", "pipefail", "-c", source]
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": search_path,
            "HEADRACE_BOOTSTRAP": addresses[DOCUMENTED_ADDRESS],
            "HEADRACE_SQL": str(folder / "sql"),
            "COLUMNS": "100",
        },
        stdout=subprocess.PIPE,
        # A console shows both; what a program prints is its result, and a client's log lines are not.
        stderr=subprocess.STDOUT if example.language == "console" else subprocess.PIPE,
        text=True,
        timeout=EXAMPLE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _compare(example: Example, output: str, where: str) -> None:
    if example.expected is None:
        return
    matches = doctest.OutputChecker().check_output(example.expected, output, doctest.ELLIPSIS)
    assert matches, f"{where} prints\n{output}\nand the page says\n{example.expected}"
