"""The layer between the core and gRPC: servicers, messages, and the outbox of each stream."""
