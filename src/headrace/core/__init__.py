"""core: state machines and rules without I/O. Time, ids and random numbers are arguments."""
