"""telemetry: counters and histograms, metric names, Prometheus formats, health checks, tracing."""
