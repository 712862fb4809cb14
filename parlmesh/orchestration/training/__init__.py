"""Training an orchestrator on the fleet: the algorithm `parl`, its prior, and the comparison of its variants."""
