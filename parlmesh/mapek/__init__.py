"""MAPE-K: a loop that watches a fleet's nodes, finds the sick one, does one thing there and remembers what worked."""
