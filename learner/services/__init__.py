"""The learner's gRPC services: decode, call, encode."""
