"""The sources of a run's experience: the fleet, or this process."""
