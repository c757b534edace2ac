"""broker.handlers.data: Produce, Fetch and the other APIs that read or change a partition's log."""
