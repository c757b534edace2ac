"""The documentation site: it builds, every page is in its navigation, and a browser loads nothing from other hosts."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src")}
EXTERNAL_IN_STYLE = re.compile(r"(?:url\(|@import\s*)['\"]?(?:https?:)?//")


class Resources(HTMLParser):
    """Collects the addresses that a browser loads with a page, and the links of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (tag, name) in LOADED:
                self.loaded.append(value)
            if value and (tag, name) == ("a", "href"):
                self.links.append(value)


def resources(page: Path) -> Resources:
    parser = Resources()
    parser.feed(page.read_text())
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "site"
    built = subprocess.run(
        [sys.executable, ROOT / "scripts/build_site.py", "--output", target],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return target


def test_every_page_is_reached_from_the_first_one(site: Path) -> None:
    reached: set[Path] = set()
    waiting = [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        links = [link.split("#")[0] for link in resources(page).links]
        local = [(page.parent / link).resolve() for link in links if link and "://" not in link and ":" not in link]
        waiting.extend(target for target in local if target.suffix == ".html" and target.is_file())

    assert reached == set(site.rglob("*.html")) - {site / "404.html"}


def test_pages_of_the_repository_are_pages_of_the_site(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    # The index of a directory replaces its README.
    pages = {page.with_name("index.html") if page.stem == "README" else page for page in pages}

    assert {page for page in pages if not (site / page).is_file()} == set()


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    external = {
        f"{page.relative_to(site)}: {address}"
        for page in site.rglob("*.html")
        for address in resources(page).loaded
        if address.startswith(("http:", "https:", "//"))
    }
    styles = {
        str(style.relative_to(site)) for style in site.rglob("*.css") if EXTERNAL_IN_STYLE.search(style.read_text())
    }

    assert external == set()
    assert styles == set()
