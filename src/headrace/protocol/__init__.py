"""Kafka protocol: decodes requests and encodes responses. Pure; performs no I/O."""
