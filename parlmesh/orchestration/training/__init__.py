"""Trains an orchestrator: the algorithm `parl`, its prior, and the comparison of variants."""
