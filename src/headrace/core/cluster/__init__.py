"""core.cluster: what the cluster knows (facts and their image) and what may become of it (pure decisions)."""
