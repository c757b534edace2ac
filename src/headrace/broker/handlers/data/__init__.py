"""broker.handlers.data: Produce, Fetch and what else reads or changes a partition's log."""
