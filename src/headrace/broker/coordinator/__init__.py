"""broker.coordinator: runs the state machines of core.group and core.transaction over internal topics."""
