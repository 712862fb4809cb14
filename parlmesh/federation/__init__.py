"""Federated rounds as arithmetic: what updates are worth, how they are joined, hidden and packed. No I/O."""
