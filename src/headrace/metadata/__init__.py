"""metadata: where cluster facts live: a port (load, put-if-version, watch, lease), in memory or in SQLite."""
