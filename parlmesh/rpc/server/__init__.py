"""The server's side of gRPC: everything between the socket and a servicer."""
