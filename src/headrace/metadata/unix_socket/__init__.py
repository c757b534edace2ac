"""One embedded store for all brokers of a host: a small server on a Unix socket, and its client."""
