"""Runtime of a broker: event loop, cooperative work, timers, request threads, shutdown steps."""
