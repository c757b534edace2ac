"""The etcd member that a node of a cluster runs besides its broker: bootstrap, supervision, stop."""
