"""broker.network: sockets, framing, response order and receive memory."""
