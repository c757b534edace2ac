"""app: the one place that knows everyone: reads settings, composes a node, starts and stops it in order."""
