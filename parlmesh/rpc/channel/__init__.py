"""The client side of gRPC: channels, credentials and retry backoff."""
