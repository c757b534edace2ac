"""telemetry: figures that cost nothing until they are read: counters, histograms, their names, Prometheus's formats."""
