"""protocol: bytes to requests and replies to bytes, no I/O. Knows model; has never seen a socket."""
