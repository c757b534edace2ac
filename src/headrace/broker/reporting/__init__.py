"""broker.reporting: what /metrics and health checks report of a broker."""
