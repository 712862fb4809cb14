"""Federated rounds: which nodes are asked, which updates count, and the next model."""
