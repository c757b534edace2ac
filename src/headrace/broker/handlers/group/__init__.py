"""broker.handlers.group: consumer groups of both protocols and their committed offsets."""
