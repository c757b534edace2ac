"""Looks at the tree as a whole: warns of files that grew too long, fails on what must never be committed.

Reads files only; decides nothing about their code, which is the linters' work.
"""

import subprocess
import sys
from pathlib import Path

LINES_WARN = 300  # a file above this usually holds two duties; a warning, because some tables are just long
GENERATED = ("_pb2", "_pb2_grpc")  # nobody reads what protoc writes
# The machine's own configuration says where packages come from: an address in a lock would overrule it.
ADDRESS = "://"


def project_files() -> list[Path]:
    """What git tracks or would track; the ignored rest is nobody's business here."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listing.split("\0") if name and (path := Path(name)).is_file()]


def main() -> int:
    broken = 0
    for path in project_files():
        if (
            path.suffix == ".py"
            and not path.stem.endswith(GENERATED)
            and (lines := len(path.read_text().splitlines())) > LINES_WARN
        ):
            print(f"warning: {path} has {lines} lines, more than {LINES_WARN}")
        if path.suffix == ".lock" and ADDRESS in path.read_text():
            print(f"error: {path} names an address; make lock writes it without")
            broken += 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
