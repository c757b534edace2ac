"""testing.local: brokers, clusters and etcd as real processes."""
