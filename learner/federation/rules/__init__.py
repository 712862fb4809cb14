"""A federation's decisions as a state machine: events in, actions out. No I/O, no clock, no gRPC."""
