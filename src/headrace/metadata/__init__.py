"""The metadata store: its interface, and implementations in memory, in SQLite and in etcd."""
