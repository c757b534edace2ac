"""cli.common: what commands share: arguments, output, errors, exit codes."""
