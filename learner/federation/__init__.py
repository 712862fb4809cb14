"""Federated rounds: who is asked, which updates count, and what becomes of the model."""
