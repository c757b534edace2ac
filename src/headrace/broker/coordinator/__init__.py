"""Coordinators: run the state machines of core.group and core.transaction over the partitions of internal topics."""
