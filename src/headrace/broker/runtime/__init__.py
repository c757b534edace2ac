"""broker.runtime: event loop, cooperative work, timers, shutdown steps."""
