"""metadata: where cluster facts live: a port (load, put-if-version, watch, lease), in memory, in SQLite or in etcd."""
