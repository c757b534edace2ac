"""Links between the project's pages lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_page_lead_to_files_that_exist(page: Path) -> None:
    text = FENCED.sub("", page.read_text())
    targets = [match["target"].split("#")[0] for match in LINK.finditer(text)]
    local = [target for target in targets if target and "://" not in target]

    missing = [target for target in local if not (page.parent / target).exists()]

    assert missing == []
