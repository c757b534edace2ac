"""What the number means with which the command line ends. Scripts rely on it: never reuse one."""

OK = 0
FAILURE = 1  # the broker or the disk refused, or a check found something wrong
USAGE = 2  # the command line or the settings make no sense
NOT_FOUND = 3  # no such topic, partition, broker or file
UNREACHABLE = 4  # nobody answers at the bootstrap address

EXIT_CODES_HELP = (
    "Exit codes: 0 success · 1 rejected or failed · 2 wrong usage or configuration · 3 not found · 4 broker unreachable"
)


def examples(*commands: str) -> str:
    """The foot of a --help page, as Markdown: what one would type, then the exit codes."""
    lines = "\n".join(f"- `{command}`" for command in commands)
    return f"Examples:\n\n{lines}\n\n{EXIT_CODES_HELP}"
