"""Entry point of the `headrace` command: runs `start` directly, and all other commands through typer.

Importing typer and rich takes 0.2 s, which is most of a broker's start time, so `start` does not import them.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["start"]:
        from headrace.cli.start import start

        return start(words[1:])
    if words in (["version"], ["--version"], ["-V"]):
        from headrace import __version__

        print(f"headrace {__version__}")
        return 0
    from headrace.cli.app import run

    return run(words)


if __name__ == "__main__":
    sys.exit(main())
