"""Broker: sockets, request pipeline, handlers, partitions and background work around the pure modules of core."""
