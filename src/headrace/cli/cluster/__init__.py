"""cli.cluster: `headrace cluster`."""
