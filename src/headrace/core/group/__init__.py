"""core.group: consumer groups and their offsets, as pure state machines. No I/O, no clock."""
