"""Builds the documentation site into site/, or into the directory that --output names: `make docs`.

Copies docs/ and the pages of the root into a staging directory, turns links to files that are not pages into
plain text, adds every decision record to the navigation, and runs Zensical in strict mode.
"""

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
# Pages outside docs/, by their path in the site.
ROOT_PAGES = {
    "README.md": "quickstart.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "src/headrace/README.md": "packages.md",
    "docs/README.md": "index.md",
}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^\s*(```|~~~)")
# Words behind a fence's language are for the test that runs the examples.
RUN_FENCE = re.compile(r"^(\s*```\w+) .*$")


def site_path(path: str) -> str | None:
    """Returns where the site has the file of the repository at `path`, or None if the site does not have it."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    return None


def converted_link(match: re.Match[str], page: str) -> str:
    """Returns the link with its target in the site, or its text if the site does not have the target."""
    target, anchor, text = match["target"], match["anchor"] or "", match["text"]
    if "://" in target or target.startswith("mailto:") or not target:
        return match[0]
    found = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(page), target)))
    if found is None:
        return text
    own = site_path(page)
    assert own is not None
    return f"{match['image']}[{text}]({posixpath.relpath(found, posixpath.dirname(own) or '.')}{anchor})"


def converted(text: str, page: str) -> str:
    lines, in_fence = [], False
    for line in text.splitlines():
        if FENCE.match(line):
            in_fence = not in_fence
            lines.append(RUN_FENCE.sub(r"\1", line))
        else:
            lines.append(line if in_fence else LINK.sub(lambda match: converted_link(match, page), line))
    return "\n".join(lines) + "\n"


def stage_pages(staging: Path) -> None:
    pages = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()]
    for page in [*ROOT_PAGES, *pages]:
        own = site_path(page)
        assert own is not None
        staged = staging / "docs" / own
        staged.parent.mkdir(parents=True, exist_ok=True)
        if page.endswith(".md"):
            staged.write_text(converted((ROOT / page).read_text(), page))
        else:
            shutil.copyfile(ROOT / page, staged)


def decision_pages() -> list[dict[str, str]]:
    pages = []
    for path in sorted((ROOT / "docs/adr").glob("[0-9]*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        pages.append({title: f"adr/{path.name}"})
    return pages


def stage_config(staging: Path) -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config["plugins"][-1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
    for section in config["nav"]:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else []:
                if "Architecture decisions" in entry:
                    entry["Architecture decisions"] = ["adr/README.md", *decision_pages()]
    (staging / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False))


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the documentation site.")
    parser.add_argument("--output", type=Path, default=ROOT / "site", help="directory of the site; default: site/")
    output: Path = parser.parse_args().output
    zensical = Path(sys.executable).with_name("zensical")
    with tempfile.TemporaryDirectory(prefix="headrace-site-") as name:
        staging = Path(name)
        stage_pages(staging)
        stage_config(staging)
        built = subprocess.run([zensical, "build", "--strict"], cwd=staging, check=False).returncode
        if built == 0:
            shutil.rmtree(output, ignore_errors=True)
            shutil.copytree(staging / "site", output)
    return built


if __name__ == "__main__":
    sys.exit(main())
