"""cli.common: options, output, errors and exit codes that commands share."""
