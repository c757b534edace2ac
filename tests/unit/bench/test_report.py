"""The pages that a run of the bench leaves: each figure stands on one of the two, with the run that it comes from."""

from pathlib import Path

import pytest

from bench.__main__ import write_pages
from bench.cases import GROUPS
from bench.ledger import COMMAND, HEADRACE, KAFKA, Case, Ledger
from bench.report import GROWTH, growth_page

PRODUCE = Case("produce/1p/page-cache", "Produce", "in this test")
PARTITIONS = Case("partitions/100", "100 partitions", "in this test")
JAVA = Case("java/produce", "ProducerPerformance", "in this test")


def run(machine: str, *cases: Case, ours: float = 2_000.0) -> Ledger:
    ledger = Ledger(facts={"processor": machine, COMMAND: f"bench on {machine}"})
    for case in cases:
        ledger.record(case, KAFKA, 1, {"rate": 1_000.0})
        ledger.record(case, HEADRACE, 1, {"rate": ours})
    return ledger


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "docs" / "performance.md"


def test_a_whole_run_writes_both_pages(page: Path) -> None:
    write_pages([run("here", PRODUCE, PARTITIONS, JAVA)], page)
    main, growth = page.read_text(), growth_page(page).read_text()
    assert f"`{PRODUCE.id}`" in main
    assert f"`{PARTITIONS.id}`" not in main
    assert "[performance-growth.md](performance-growth.md)" in main
    assert f"| `{PARTITIONS.id}` | messages/s | 1000 | 2000 | 2 × |" in growth
    assert f"`{JAVA.id}`" in growth
    assert f"`{PRODUCE.id}`" not in growth
    assert "Not in this run: `connections`, `log-size`." in growth
    assert sorted(one.name for one in page.parent.glob("*.svg")) == ["performance-growth.svg", "performance.svg"]


def test_runs_that_did_not_measure_growth_leave_its_page_as_it_is(page: Path) -> None:
    page.parent.mkdir()
    growth_page(page).write_text("figures of an earlier run\n")
    write_pages([run("here", PRODUCE)], page)
    assert growth_page(page).read_text() == "figures of an earlier run\n"
    assert "[performance-growth.md](performance-growth.md)" in page.read_text()


def test_growth_is_told_with_the_machine_that_it_was_measured_on(page: Path) -> None:
    write_pages([run("an old machine", PARTITIONS), run("a new machine", PRODUCE)], page)
    assert "| processor | an old machine |" in growth_page(page).read_text()
    assert "| processor | a new machine |" in page.read_text()
    assert "| command | bench on an old machine; bench on a new machine |" in page.read_text()


def test_of_several_runs_the_last_one_counts(page: Path) -> None:
    write_pages([run("here", PARTITIONS), run("here", PARTITIONS, ours=3_000.0)], page)
    assert "| 1000 | 3000 | 3 × |" in growth_page(page).read_text()


def test_what_failed_is_named_on_the_page_where_its_figures_would_be(page: Path) -> None:
    ledger = run("here", PRODUCE, PARTITIONS)
    ledger.fail(PARTITIONS, HEADRACE, "out of patience")
    write_pages([ledger], page)
    assert "out of patience" in growth_page(page).read_text()
    assert "out of patience" not in page.read_text()


def test_the_groups_of_the_second_page_are_groups_of_the_bench() -> None:
    assert set(GROWTH) <= {group.name for group in GROUPS}
