"""Every file and directory that docs/architecture.md names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
NAMED = re.compile(r"`([\w./*-]+(?:\.py|\.proto|/))`")
# Where the page's paths begin; a bare file name stands beside the path before it in the same line.
BASES = (ROOT / "src/headrace", ROOT)


def missing_in(line: str) -> list[str]:
    missing, directory = [], ""
    for name in NAMED.findall(line):
        candidates = [name, f"{directory}/{name}"]
        found = any(next(base.glob(one), None) for base in BASES for one in candidates if not one.startswith("/"))
        if not found:
            missing.append(name)
        elif "/" in name:
            directory = name.rpartition("/")[0]
    return missing


def test_files_of_the_page_exist() -> None:
    missing = [name for line in PAGE.read_text().splitlines() for name in missing_in(line)]

    assert missing == []


def test_file_that_does_not_exist_is_found() -> None:
    assert missing_in("`storage/log.py` and `storage/no_such_file.py`") == ["storage/no_such_file.py"]
