"""Leader epochs of a log."""
