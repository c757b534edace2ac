"""Where the `headrace` command begins: `start` goes straight to the broker, all else through typer.

Decides only which way to go. Typer and rich cost a fifth of a second to import, which is most of what a
broker may take to start, so `start` never meets them.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and gives its exit code."""
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
