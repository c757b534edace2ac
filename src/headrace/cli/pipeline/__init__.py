"""cli.pipeline: `headrace pipeline`."""
