"""client.core: errors, security settings and byte formats that the drivers share. Performs no I/O."""
