"""Secure aggregation as arithmetic: shares of secrets, keys between nodes, masks and fixed-point numbers. No I/O."""
