"""core.image: the cluster metadata in memory and its stored form."""
