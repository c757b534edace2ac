"""cli.log: `headrace log`."""
