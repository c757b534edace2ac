"""broker.handlers.cluster: what clients ask of the cluster: versions, metadata, coordinators, quorum."""
