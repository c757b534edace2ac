"""kafka-python's own integration suite as a judge: fetched from PyPI, run as it is against a broker of ours.

Nothing of the suite is kept in this repository: it lives in `.cache`. By hand, against any broker:

    python tests/compat/kafka_python_suite.py 127.0.0.1:9092 --version 4.0
"""

import argparse
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "kafka-python"
VERSION = "3.0.12"
REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / f"kafka-python-{VERSION}"
# Where the bootstrap had to fetch uv, it made an environment with pip for that.
BOOTSTRAPPED_PIP = (str(REPOSITORY / ".cache" / "tools" / "bin" / "python"), "-m", "pip")
PASSING = Path(__file__).with_name("kafka_python_passing.txt")

# The suite tells clients which Kafka they speak to, and expects them to find out the same by themselves: they
# look at the highest versions advertised, and ours (ListOffsets 11, DescribeLogDirs 5) are those of Kafka 4.3.
SPOKEN_VERSION = "4.3"

SUITE_SECONDS_MAX = 600.0

# The source package lacks the module through which the suite starts and watches brokers. Ours runs already.
SERVICE_STUB = '''"""Stands in for a module that is not in the source package: the broker runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, args=(), env=None):
        raise RuntimeError("the suite is only run against a broker that runs already")
'''


def fetch() -> Path:
    """The unpacked source package, with the two files that it lacks."""
    folder = CACHE / f"{PACKAGE.replace('-', '_')}-{VERSION}"
    if not (folder / "test" / "service.py").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        _download(CACHE)
        (archive,) = CACHE.glob("*.tar.gz")
        with tarfile.open(archive) as package:
            if hasattr(tarfile, "data_filter"):
                package.extractall(CACHE, filter="data")
            else:  # Python 3.11.2, Debian's, is older than filters
                package.extractall(CACHE)
        (folder / "test" / "__init__.py").touch()
        (folder / "test" / "service.py").write_text(SERVICE_STUB)
    return folder


def _download(folder: Path) -> None:
    arguments = [
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        PACKAGE,
        "-d",
        str(folder),
        f"{PACKAGE}=={VERSION}",
    ]
    refusals = []
    for pip in ([sys.executable, "-m", "pip"], ["uv", "tool", "run", "pip"], [*BOOTSTRAPPED_PIP], ["pip"]):
        try:
            done = subprocess.run([*pip, *arguments], capture_output=True, text=True)
        except FileNotFoundError as error:
            refusals.append(str(error))
            continue
        if done.returncode == 0:
            return
        refusals.append(f"{' '.join(pip)}: {done.stderr}")
    raise RuntimeError("cannot download the source package of kafka-python:\n" + "\n".join(refusals))


def run(
    bootstrap: str, spoken_version: str = SPOKEN_VERSION, tests: Sequence[str] = (), only: str | None = None
) -> dict[str, str]:
    """Outcome ("passed", "failed", "error", "skipped") by name of the given tests, or of all of the suite."""
    folder = fetch()
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    environment = os.environ | {
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": spoken_version,
        "KAFKA_ROOT": str(folder),
        "PROJECT_ROOT": str(folder),
        "PYTHONPATH": str(REPOSITORY),  # for the plugin, which is a file of ours
    }
    chosen = ["test/integration/" + name.replace("::", ".py::", 1) for name in tests] or ["test/integration"]
    command = [sys.executable, "-m", "pytest", *chosen, f"--junitxml={report}", "-q", "--tb=short"]
    # The suite expects its own order and its own `kafka_broker`.
    command += ["-p", "no:randomly", "-p", "no:headrace", "-p", "no:cacheprovider", "--show-capture=no"]
    command += ["-p", "tests.compat.kafka_python_config"]
    if only is not None:
        command += ["-k", only]
    subprocess.run(command, cwd=folder, env=environment, timeout=SUITE_SECONDS_MAX, stdout=sys.stderr)
    return _outcomes(report)


def _outcomes(report: Path) -> dict[str, str]:
    outcomes = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        file = case.attrib["classname"].removeprefix("test.integration.")
        problem = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        outcomes[f"{file}::{case.attrib['name']}"] = "failed" if problem == "failure" else problem
    return outcomes


def must_pass() -> list[str]:
    """The checked-in list: one test a line, comments with #."""
    lines = (line.split("#")[0].strip() for line in PASSING.read_text().splitlines())
    return [line for line in lines if line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--version", default=SPOKEN_VERSION)
    parser.add_argument("--only", help="an expression for pytest's -k")
    arguments = parser.parse_args()
    outcomes = run(arguments.bootstrap, arguments.version, only=arguments.only)
    for name, outcome in sorted(outcomes.items()):
        print(f"{outcome:8} {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
