"""cli: the `headrace` command, with one module per noun. `start` imports little; the other commands use typer."""
