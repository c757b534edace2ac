"""broker.network: sockets, framing, response order, receive memory."""
