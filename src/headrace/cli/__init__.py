"""cli: the `headrace` command, a noun a file. `start` is kept light; everything else is typer and rich."""
