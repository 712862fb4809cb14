"""The client's side of gRPC: channels, credentials and waiting between tries."""
