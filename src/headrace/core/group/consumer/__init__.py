"""core.group.consumer: groups of the consumer protocol, whose assignment the broker computes (KIP-848). No I/O."""
