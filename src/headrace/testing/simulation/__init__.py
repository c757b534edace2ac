"""testing.simulation: simulated clock, event loop, disk, network and metadata store."""
