"""Where a run's experience comes from: the fleet, or this process."""
