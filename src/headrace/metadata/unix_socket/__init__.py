"""One embedded store for the brokers of one machine: a small server on a Unix socket, and its client."""
