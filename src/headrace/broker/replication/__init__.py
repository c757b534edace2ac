"""Replication: followers fetch from leaders, leaders maintain the ISR, and brokers report their liveness."""
