"""app: the composition root. Reads settings, builds a node from its parts, starts and stops it in order."""
