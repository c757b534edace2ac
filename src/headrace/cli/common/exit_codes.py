"""Exit codes of the command line. Scripts rely on them: a code is never reused."""

OK = 0
FAILURE = 1  # the broker or the disk returned an error, or a check failed
USAGE = 2  # the command line or the settings are invalid
NOT_FOUND = 3  # no such topic, partition, broker or file
UNREACHABLE = 4  # no broker responds at the bootstrap address

EXIT_CODES_HELP = (
    "Exit codes: 0 success · 1 failure · 2 wrong usage or invalid configuration · 3 not found · 4 broker unreachable"
)


def examples(*commands: str) -> str:
    """Returns the epilog of a --help page as Markdown: examples, then the exit codes."""
    lines = "\n".join(f"- `{command}`" for command in commands)
    return f"Examples:\n\n{lines}\n\n{EXIT_CODES_HELP}"
