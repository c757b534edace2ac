"""The etcd member that a node of a cluster runs beside its broker: how it is begun, watched and stopped."""
