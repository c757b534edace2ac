"""core.group: consumer groups and their offsets, as machines that decide. No clock, no log, no sockets."""
