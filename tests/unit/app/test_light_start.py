"""What a node alone must not load: each of these would take longer than the rest of its start."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["grpc", "h2", "yaml", "confluent_kafka", "fastapi", "uvicorn", "uvloop", "pydantic", "orjson", "google.protobuf"],
)
def test_a_node_alone_does_without(module: str) -> None:
    imports = "import sys, headrace.app.node, headrace.app.rest_process, headrace.cli.start"
    program = f"{imports}; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0
