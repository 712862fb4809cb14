"""The scheduler's decisions: a state machine without I/O, clock, threads or messages."""
