"""Metrics and health checks of a broker."""
