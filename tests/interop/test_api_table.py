"""The versions of every API are Apache Kafka's own, and what we do not serve at all is what the documentation says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import LocalBroker
from tests.interop.apache_kafka import ApacheKafka, tool

COMPATIBILITY = Path(__file__).parents[2] / "docs" / "compatibility.md"
# The heading's section lists one group of APIs a row, their names in the first column.
MISSING_HEADING = "### APIs that are not served"
ROW = re.compile(r"(\w+)\(\d+\): (UNSUPPORTED|\d+(?: to \d+)?)")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def served_by(bootstrap: str) -> dict[str, str]:
    """API → its range of versions, as Kafka's own client is told them."""
    listed = tool("org.apache.kafka.tools.BrokerApiVersionsCommand", "--bootstrap-server", bootstrap).text
    return {name: versions for name, versions in ROW.findall(listed) if versions != "UNSUPPORTED"}


def documented_as_missing() -> set[str]:
    section = COMPATIBILITY.read_text().split(MISSING_HEADING)[1].split("\n#")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    with LocalBroker() as ours, ApacheKafka(tmp_path_factory.mktemp("kafka")) as theirs:
        yield served_by(ours.bootstrap), served_by(theirs.bootstrap)


def test_what_we_serve_we_serve_in_all_versions_of_apache_kafka(tables):
    ours, theirs = tables
    assert {name: theirs.get(name) for name in ours} == ours


def test_what_we_do_not_serve_is_documented(tables):
    ours, theirs = tables
    assert theirs.keys() - ours.keys() == documented_as_missing()
