"""broker.handlers.transaction: producer ids and transactions."""
