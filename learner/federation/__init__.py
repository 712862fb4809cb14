"""Federated rounds: which nodes are asked, which updates count, and what the next model is."""
