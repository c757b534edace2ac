"""The stubs in the package are what protoc makes of the .proto."""

import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

import headrace

PACKAGE = Path(headrace.__file__).parent
PROTO = PACKAGE / "rpc" / "headrace.proto"
MADE = ["headrace_pb2.py", "headrace_pb2.pyi", "headrace_pb2_grpc.py"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{PACKAGE.parent}", *outputs, str(PROTO)]) == 0
    return folder / "headrace" / "rpc"


@pytest.mark.parametrize("name", MADE)
def test_stubs_match_the_proto(made: Path, name: str):
    assert (PROTO.parent / name).read_text() == (made / name).read_text(), "run `make proto` and commit what it writes"


def test_the_reference_says_what_the_proto_says():
    root = Path(__file__).resolve().parents[3]
    written = subprocess.run(
        [sys.executable, str(root / "scripts" / "grpc_reference.py")], capture_output=True, text=True, check=True
    ).stdout
    assert (root / "docs" / "reference" / "grpc.md").read_text() == written, "run `make docs` and commit what it writes"
