"""broker.handlers.cluster: API versions, metadata, coordinators and quorum."""
