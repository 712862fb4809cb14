"""Between the core and gRPC: servicers, messages, and what waits to be written to each stream."""
