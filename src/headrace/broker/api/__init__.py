"""broker.api: the request pipeline, from a decoded header to a response."""
