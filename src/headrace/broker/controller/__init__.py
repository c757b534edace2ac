"""Cluster metadata: commits and publishes changes; broker registration, sessions, elections and failure detection."""
