"""api: REST and gRPC servers, each in a process of its own; clients of the broker."""
