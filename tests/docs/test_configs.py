"""Every config file that a page shows (a fence of `yaml config`) is one that a node would start with."""

from pathlib import Path

import pytest

from headrace.config.loader import load_settings
from tests.docs.examples import FENCE
from tests.docs.test_examples import PAGES, ROOT

CONFIGS = [
    pytest.param(fence["body"], id=f"{page.relative_to(ROOT)}:{page.read_text().count(chr(10), 0, fence.start()) + 2}")
    for page in PAGES
    for fence in FENCE.finditer(page.read_text())
    if fence["info"].split() == ["yaml", "config"]
]


@pytest.mark.parametrize("text", CONFIGS)
def test_the_config_of_the_page_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(text)
    assert load_settings(str(file), {}).remarks() == []
