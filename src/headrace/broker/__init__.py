"""broker: the shell around the pure parts: sockets, dispatch, handlers, partitions, background work."""
