"""What a node alone must not load: each of these would take longer than the rest of its start."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["grpc", "yaml", "confluent_kafka"])
def test_a_node_alone_does_without(module: str) -> None:
    program = f"import sys, headrace.app.node, headrace.cli.start; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0
