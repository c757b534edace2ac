"""core.replica: what a partition's leader may call committed. Pure arithmetic on offsets."""
