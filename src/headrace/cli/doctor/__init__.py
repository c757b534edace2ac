"""cli.doctor: `headrace doctor`."""
