"""The reference page is what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_is_up_to_date():
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "metrics_reference.py")], capture_output=True, text=True, check=True
    )
    assert made.stdout == (ROOT / "docs" / "reference" / "metrics.md").read_text(), "run `make docs`"
