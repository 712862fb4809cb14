"""Secure sums on the learner's side: what nodes are asked for, and the sum without its masks."""
