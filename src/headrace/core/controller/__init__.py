"""core.controller: changes of the cluster metadata, as pure functions from image and request to metadata records."""
