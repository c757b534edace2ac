"""client.core: errors, security settings and byte formats that both drivers share. No I/O."""
