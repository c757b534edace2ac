"""Checks the files of the repository: warns of long files, fails on lock files that name an index address."""

import subprocess
import sys
from pathlib import Path

LINES_WARN = 300  # a longer file usually has two responsibilities; a warning only, because some tables are long
GENERATED = ("_pb2", "_pb2_grpc")  # written by protoc
# The host's configuration selects the package index. An address in a lock file would override it.
ADDRESS = "://"


def project_files() -> list[Path]:
    """Returns the files that git tracks or would track."""
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
            print(f"error: {path} has an index address; run `make lock`")
            broken += 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
